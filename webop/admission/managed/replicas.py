"""Plan a webhook configuration that several replicas share, of one version or of two.

Pure. :mod:`webop.admission.managed.shared_configurations` reads a configuration, asks this module
for a plan, and writes the plan only if the configuration has not changed meanwhile.

Guarantees:
    - A webhook exists as long as any live replica serves it. Each of its resources stays as long
      as any replica at its address judges it. So objects never pass unchecked.
    - A new webhook, and a new resource of a webhook, are added when all replicas at its address
      know them. So calls never meet a replica that does not.
    - The replica that was started last decides on the other fields of a webhook. The API server
      trusts the CAs of all live replicas.
    - All replicas make the same plan, so they do not overwrite each other.

Caveats:
    In a rollout that removes or renames a handler, calls of its webhook can meet replicas that do
    not have the handler any more. They refuse, so that nothing passes unchecked.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webop.admission.managed.replica_records import (
    PREFIX,
    Json,
    ReplicaRecord,
    Served,
    build_bundle,
    decode_record,
    get_renewal,
    join_address,
    list_targets,
    parse_bundle,
    split_address,
)

# Defaults of the API server (Kubernetes API, admissionregistration.k8s.io/v1).
_DEFAULTS: Json = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "reinvocationPolicy": "Never",
    "timeoutSeconds": 10,
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration as it was read.

    Attributes:
        version: its resource version; None if the object does not exist.
        records: the live replicas by the names of their annotations.
        stale: the annotations of dead replicas, and annotations that cannot be read.
        webhooks: the present webhooks.
    """

    version: str | None = None
    records: Mapping[str, ReplicaRecord] = dataclasses.field(default_factory=dict)
    stale: frozenset[str] = frozenset()
    webhooks: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The content to write into a configuration.

    ``deferred`` names the webhooks that wait, in full or in part, for other replicas.
    """

    webhooks: Sequence[Json]
    records: Mapping[str, ReplicaRecord]
    deferred: frozenset[str] = frozenset()


def build_record(webhooks: Iterable[Json], config: Mapping[str, Any], **who: Any) -> ReplicaRecord:
    """Return the record of a replica that serves some webhooks, with all of their definitions.

    Raises:
        ConfigurationError: the config is not usable.
    """
    served, definitions = {}, {}
    for webhook in webhooks:
        _, path = split_address(webhook["clientConfig"])
        served[webhook["name"]] = Served(path, list_targets(webhook["rules"]))
        definitions[webhook["name"]] = _cut(webhook)
    return ReplicaRecord(
        address=split_address(config)[0],
        cas=parse_bundle(config.get("caBundle")),
        served=served,
        definitions=definitions,
        **who,
    )


def parse_configuration(
    body: Mapping[str, Any] | None, is_alive: Callable[[ReplicaRecord], bool]
) -> Configuration:
    """Parse an object of the API server; None stands for no object."""
    if body is None:
        return Configuration()
    annotations = body["metadata"].get("annotations") or {}
    found = {k: decode_record(text) for k, text in annotations.items() if k.startswith(PREFIX)}
    alive = {k: record for k, record in found.items() if record is not None and is_alive(record)}
    return Configuration(
        version=body["metadata"]["resourceVersion"],
        records=alive,
        stale=frozenset(found.keys() - alive.keys()),
        webhooks=body.get("webhooks") or (),
    )


def plan_presence(
    found: Configuration,
    elsewhere: Mapping[str, ReplicaRecord],
    key: str,
    mine: ReplicaRecord,
    now: dt.datetime,
) -> Plan:
    """Plan a configuration that a replica serves, beside others.

    Args:
        found: the configuration in the cluster.
        elsewhere: the records in the other configuration. A replica that has never had a record
            in this one serves no webhook of this type.
        key: the annotation of this replica.
        mine: the record of this replica. A fresh one in the cluster is not renewed.
        now: the time of the API server.
    """
    offered = mine.definitions
    mine = dataclasses.replace(mine, renewed=now)
    webhooks, deferred = merge({**found.records, key: mine}, elsewhere, found.webhooks)
    in_force = {webhook["name"]: _cut(webhook) for webhook in webhooks}
    pending = {
        name: definition
        for name, definition in offered.items()
        if name in deferred
        or _reduce_content(in_force.get(name, {})) != _reduce_content(definition)
    }
    mine = dataclasses.replace(mine, definitions=pending)
    old = found.records.get(key)
    if old is not None and (now - old.renewed).total_seconds() < get_renewal(mine.lifetime) / 2:
        is_same = dataclasses.replace(old, renewed=now) == mine
        mine = old if is_same and list(old.served) == list(mine.served) else mine
    return Plan(webhooks, {**found.records, key: mine}, deferred)


def plan_exit(
    found: Configuration,
    elsewhere: Mapping[str, ReplicaRecord],
    key: str,
    persistent: Collection[str],
) -> Plan:
    """Plan a configuration without a replica: drop the webhooks that no other replica serves.

    Only the persistent webhooks of the last replica stay (ADM-11, ADM-47). Nothing is dropped
    if the only other replicas have retired, or are in the other configuration only: these are
    about to leave or to join, and then plan themselves.
    """
    records = {other: record for other, record in found.records.items() if other != key}
    others = {other: record for other, record in elsewhere.items() if other != key}
    if any(not record.is_retired for record in records.values()):
        webhooks, deferred = merge(records, others, found.webhooks)
        return Plan(webhooks, records, deferred)
    if records or others:
        return Plan(found.webhooks, records)
    kept = [webhook for webhook in found.webhooks if webhook["name"] in persistent]
    return Plan(kept, {})


def merge(
    records: Mapping[str, ReplicaRecord],
    elsewhere: Mapping[str, ReplicaRecord],
    existing: Iterable[Json],
) -> tuple[list[Json], frozenset[str]]:
    """Return the webhooks to write, and the names of those that wait for other replicas.

    Existing webhooks that no replica serves are dropped (ADM-41).
    """
    ranked = sorted(
        records.values(), key=lambda record: (record.since, record.identity), reverse=True
    )
    joining = [m for key, m in elsewhere.items() if key not in records and not m.is_in_both]
    everyone = [*ranked, *(dataclasses.replace(record, served={}) for record in joining)]
    bundle = build_bundle(pem for record in ranked for pem in record.cas)
    in_cluster = {webhook["name"]: webhook for webhook in existing}
    merged: list[Json] = []
    deferred: set[str] = set()
    for name in dict.fromkeys(name for record in ranked for name in record.served):
        current = in_cluster.get(name)
        candidates = [record for record in ranked if name in record.served]
        chosen = _choose(name, candidates, everyone, current)
        content = None if chosen is None else _get_content(name, chosen, candidates, current)
        if chosen is None or content is None:
            deferred.add(name)
            continue
        path = chosen.served[name].path
        sharing = [record for record in everyone if record.address == chosen.address]
        rules, is_complete = _merge_rules(content["rules"], path, sharing, current)
        if not is_complete:
            deferred.add(name)
        if rules:
            config = {**join_address(chosen.address, path), **bundle}
            merged.append({**content, "rules": rules, "clientConfig": config})
    return merged, frozenset(deferred)


def is_same(one: Sequence[Json], other: Sequence[Json]) -> bool:
    """Return whether webhooks are equal, except for defaults that the API server has added."""
    return list(map(_reduce, one)) == list(map(_reduce, other))


def build_patch(found: Configuration, plan: Plan) -> Json | None:
    """Return the merge patch for an existing object; None if there is nothing to change.

    The API server refuses it (409) if the object has changed since it was read.
    """
    gone = {*found.stale, *found.records} - plan.records.keys()
    annotations: Json = dict.fromkeys(gone)
    changed = {
        k: record for k, record in plan.records.items() if found.records.get(k) is not record
    }
    annotations.update(build_annotations(changed))
    patch: Json = {} if is_same(found.webhooks, plan.webhooks) else {"webhooks": plan.webhooks}
    if not annotations and not patch:
        return None
    metadata: Json = {"resourceVersion": found.version}
    return {"metadata": {**metadata, "annotations": annotations}, **patch}


def build_annotations(records: Mapping[str, ReplicaRecord]) -> Json:
    """Return the annotations of a new object."""
    return {key: record.encode() for key, record in records.items()}


def _choose(
    name: str,
    candidates: Sequence[ReplicaRecord],
    everyone: Sequence[ReplicaRecord],
    current: Json | None,
) -> ReplicaRecord | None:
    """Return the candidate that decides on a webhook; all candidates serve it.

    It is the newest one whose path all others at its address know; else the newest one that serves
    the webhook in the cluster; else None: the webhook must wait.
    """
    for record in candidates:
        path = record.served[name].path
        if all(other.get_targets(path) for other in everyone if other.address == record.address):
            return record
    if current is None:
        return None
    in_force = split_address(current["clientConfig"])
    served = (
        record for record in candidates if (record.address, record.served[name].path) == in_force
    )
    return next(served, candidates[0])


def _get_content(
    name: str, chosen: ReplicaRecord, candidates: Sequence[ReplicaRecord], current: Json | None
) -> Json | None:
    """Return a webhook without ``clientConfig``, from the best source.

    If the record of the chosen replica has no definition, it has already written the current one.
    """
    if name in chosen.definitions:
        return chosen.definitions[name]
    if current is not None:
        return _cut(current)
    return next((m.definitions[name] for m in candidates if name in m.definitions), None)


def _merge_rules(
    rules: Sequence[Json], path: str, sharing: Sequence[ReplicaRecord], current: Json | None
) -> tuple[Sequence[Json], bool]:
    """Return the rules of a webhook, and whether they are complete.

    Rules for new resources wait until all replicas at the address judge them. Current rules stay
    as long as any replica judges their resources.
    """
    served = [record.get_targets(path) for record in sharing]
    present = (current or {}).get("rules") or ()
    in_force, common = list_targets(present), frozenset.intersection(*served)
    admitted = [rule for rule in rules if list_targets([rule]) <= in_force | common]
    wanted = list_targets(rules)
    others = [rule for rule in present if not list_targets([rule]) <= wanted]
    merged = _select_judged([*admitted, *others], served)
    if current is not None:  # the webhook must stay, even if some replicas do not know it yet
        merged = merged or _select_judged(rules, served) or list(present)
    return merged, len(admitted) == len(rules)


def _select_judged(rules: Iterable[Json], served: Sequence[frozenset[str]]) -> list[Json]:
    """Return the rules whose resources any replica judges."""
    return [rule for rule in rules if any(list_targets([rule]) <= targets for targets in served)]


def _cut(webhook: Mapping[str, Any]) -> Json:
    return {key: value for key, value in webhook.items() if key != "clientConfig"}


def _reduce(webhook: Mapping[str, Any]) -> Json:
    """Drop the fields of a webhook that are empty or have their defaults."""
    config = webhook["clientConfig"]
    address, path = split_address(config)
    place = {"address": address, "path": path, "caBundle": config.get("caBundle") or ""}
    return {**_reduce_content(_cut(webhook)), "clientConfig": place}


def _reduce_content(content: Mapping[str, Any]) -> Json:
    reduced = {k: v for k, v in content.items() if v and v != _DEFAULTS.get(k)}
    rules = content.get("rules") or ()
    reduced["rules"] = [
        {k: v for k, v in rule.items() if (k, v) != ("scope", "*")} for rule in rules
    ]
    return reduced
