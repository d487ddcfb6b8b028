"""What is in a webhook configuration that several replicas share, equal or of two versions.

Pure. :mod:`webop.admission.managed.management` reads a configuration, has it planned here what is
to be changed, and writes that only if the configuration has not changed meanwhile.

Guarantees:
    - A webhook is there as long as any live replica serves it, and so is each of its resources as
      long as any replica at its address judges it: objects never pass unchecked.
    - A new one, and a new resource of an existing one, come when all replicas that calls can
      meet at its address know it: calls never meet one that does not.
    - The replica that was started last decides what else is in a webhook. All authorities of all
      live replicas are trusted.
    - All replicas come to the same, so they do not overwrite each other in circles.

Caveats:
    Between the versions of a rollout that removes or renames a handler, calls of its webhook can
    meet replicas that do not know it any more: they refuse, as nothing is to pass unchecked.
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
    decode_mark,
    get_renewal,
    join_address,
    list_targets,
    parse_bundle,
    split_address,
)

# What the API server fills in (Kubernetes API, admissionregistration.k8s.io/v1).
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
        version: its resource version; None if there is no such object.
        marks: the live replicas by the names of their annotations.
        stale: the annotations of those that are gone, and those that cannot be read.
        webhooks: as they are.
    """

    version: str | None = None
    marks: Mapping[str, ReplicaRecord] = dataclasses.field(default_factory=dict)
    stale: frozenset[str] = frozenset()
    webhooks: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a configuration is to become; ``deferred`` are webhooks that are not all in force."""

    webhooks: Sequence[Json]
    marks: Mapping[str, ReplicaRecord]
    deferred: frozenset[str] = frozenset()


def build_mark(webhooks: Iterable[Json], config: Mapping[str, Any], **who: Any) -> ReplicaRecord:
    """Return the mark of a replica that serves some webhooks, with all of their definitions.

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
        authorities=parse_bundle(config.get("caBundle")),
        served=served,
        definitions=definitions,
        **who,
    )


def parse_configuration(
    body: Mapping[str, Any] | None, is_alive: Callable[[ReplicaRecord], bool]
) -> Configuration:
    """Return what there is in an object of the API server; None stands for no object."""
    if body is None:
        return Configuration()
    annotations = body["metadata"].get("annotations") or {}
    found = {k: decode_mark(text) for k, text in annotations.items() if k.startswith(PREFIX)}
    alive = {k: mark for k, mark in found.items() if mark is not None and is_alive(mark)}
    return Configuration(
        version=body["metadata"]["resourceVersion"],
        marks=alive,
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
    """Plan a configuration with a replica as one of those that serve it.

    Replicas with live marks elsewhere, in the other configuration, that never had any in this one
    serve no webhook of this type. A mark of its own that is fresh is left as it is.
    """
    offered = mine.definitions
    mine = dataclasses.replace(mine, renewed=now)
    webhooks, deferred = merge({**found.marks, key: mine}, elsewhere, found.webhooks)
    in_force = {webhook["name"]: _cut(webhook) for webhook in webhooks}
    pending = {
        name: definition
        for name, definition in offered.items()
        if name in deferred
        or _reduce_content(in_force.get(name, {})) != _reduce_content(definition)
    }
    mine = dataclasses.replace(mine, definitions=pending)
    old = found.marks.get(key)
    if old is not None and (now - old.renewed).total_seconds() < get_renewal(mine.lifetime) / 2:
        is_same = dataclasses.replace(old, renewed=now) == mine
        mine = old if is_same and list(old.served) == list(mine.served) else mine
    return Plan(webhooks, {**found.marks, key: mine}, deferred)


def plan_exit(
    found: Configuration,
    elsewhere: Mapping[str, ReplicaRecord],
    key: str,
    persistent: Collection[str],
) -> Plan:
    """Plan a configuration without a replica: its webhooks go if nobody else serves them.

    Those of the last replica go, too, but for the persistent ones (ADM-11, ADM-47). If there are
    others in the other configuration only, they are about to come, and decide on all themselves;
    so do those that have retired, which are about to go.
    """
    marks = {other: mark for other, mark in found.marks.items() if other != key}
    others = {other: mark for other, mark in elsewhere.items() if other != key}
    if any(not mark.is_retired for mark in marks.values()):
        webhooks, deferred = merge(marks, others, found.webhooks)
        return Plan(webhooks, marks, deferred)
    if marks or others:
        return Plan(found.webhooks, marks)
    kept = [webhook for webhook in found.webhooks if webhook["name"] in persistent]
    return Plan(kept, {})


def merge(
    marks: Mapping[str, ReplicaRecord],
    elsewhere: Mapping[str, ReplicaRecord],
    existing: Iterable[Json],
) -> tuple[list[Json], frozenset[str]]:
    """Return the webhooks that there should be, and the names of those to be completed later.

    Existing ones that no replica serves are dropped (ADM-41).
    """
    ranked = sorted(marks.values(), key=lambda mark: (mark.since, mark.identity), reverse=True)
    strangers = [m for key, m in elsewhere.items() if key not in marks and not m.is_in_both]
    everyone = [*ranked, *(dataclasses.replace(mark, served={}) for mark in strangers)]
    bundle = build_bundle(pem for mark in ranked for pem in mark.authorities)
    records = {webhook["name"]: webhook for webhook in existing}
    merged: list[Json] = []
    deferred: set[str] = set()
    for name in dict.fromkeys(name for mark in ranked for name in mark.served):
        record = records.get(name)
        candidates = [mark for mark in ranked if name in mark.served]
        chosen = _choose(name, candidates, everyone, record)
        content = None if chosen is None else _get_content(name, chosen, candidates, record)
        if chosen is None or content is None:
            deferred.add(name)
            continue
        path = chosen.served[name].path
        sharing = [mark for mark in everyone if mark.address == chosen.address]
        rules, is_complete = _merge_rules(content["rules"], path, sharing, record)
        if not is_complete:
            deferred.add(name)
        if rules:
            config = {**join_address(chosen.address, path), **bundle}
            merged.append({**content, "rules": rules, "clientConfig": config})
    return merged, frozenset(deferred)


def is_same(one: Sequence[Json], other: Sequence[Json]) -> bool:
    """Tell whether webhooks are the same for the API server, what it fills in left aside."""
    return list(map(_reduce, one)) == list(map(_reduce, other))


def build_patch(found: Configuration, plan: Plan) -> Json | None:
    """Return the merge patch for an existing object; None if there is nothing to change.

    It fails (409) if the object is not as it was found any more.
    """
    gone = {*found.stale, *found.marks} - plan.marks.keys()
    annotations: Json = dict.fromkeys(gone)
    changed = {k: mark for k, mark in plan.marks.items() if found.marks.get(k) is not mark}
    annotations.update(build_annotations(changed))
    patch: Json = {} if is_same(found.webhooks, plan.webhooks) else {"webhooks": plan.webhooks}
    if not annotations and not patch:
        return None
    metadata: Json = {"resourceVersion": found.version}
    return {"metadata": {**metadata, "annotations": annotations}, **patch}


def build_annotations(marks: Mapping[str, ReplicaRecord]) -> Json:
    """Return the annotations of a new object."""
    return {key: mark.encode() for key, mark in marks.items()}


def _choose(
    name: str,
    candidates: Sequence[ReplicaRecord],
    everyone: Sequence[ReplicaRecord],
    record: Json | None,
) -> ReplicaRecord | None:
    """Return the replica that decides on a webhook, which is served by all of the candidates.

    It is the newest one whose path all others at its address know. If there is none, it is the
    newest one that serves what is in force; without that, the webhook has to wait.
    """
    for mark in candidates:
        path = mark.served[name].path
        if all(other.get_targets(path) for other in everyone if other.address == mark.address):
            return mark
    if record is None:
        return None
    in_force = split_address(record["clientConfig"])
    served = (mark for mark in candidates if (mark.address, mark.served[name].path) == in_force)
    return next(served, candidates[0])


def _get_content(
    name: str, chosen: ReplicaRecord, candidates: Sequence[ReplicaRecord], record: Json | None
) -> Json | None:
    """Return a webhook without ``clientConfig``, by the best source that there is.

    If the one who decides has not told, the present webhook is what it has put in force.
    """
    if name in chosen.definitions:
        return chosen.definitions[name]
    if record is not None:
        return _cut(record)
    return next((m.definitions[name] for m in candidates if name in m.definitions), None)


def _merge_rules(
    rules: Sequence[Json], path: str, sharing: Sequence[ReplicaRecord], record: Json | None
) -> tuple[Sequence[Json], bool]:
    """Return the rules of a webhook, and whether all of the wanted ones are among them.

    Those of new resources wait until all replicas at the address judge them; those in force stay
    as long as any of them does.
    """
    served = [mark.get_targets(path) for mark in sharing]
    present = (record or {}).get("rules") or ()
    in_force, common = list_targets(present), frozenset.intersection(*served)
    admitted = [rule for rule in rules if list_targets([rule]) <= in_force | common]
    wanted = list_targets(rules)
    others = [rule for rule in present if not list_targets([rule]) <= wanted]
    merged = _select_judged([*admitted, *others], served)
    if record is not None:  # it has to stay, even if that is too early for some
        merged = merged or _select_judged(rules, served) or list(present)
    return merged, len(admitted) == len(rules)


def _select_judged(rules: Iterable[Json], served: Sequence[frozenset[str]]) -> list[Json]:
    """Return the rules for resources that any replica judges."""
    return [rule for rule in rules if any(list_targets([rule]) <= targets for targets in served)]


def _cut(webhook: Mapping[str, Any]) -> Json:
    return {key: value for key, value in webhook.items() if key != "clientConfig"}


def _reduce(webhook: Mapping[str, Any]) -> Json:
    """Leave out of a webhook what is absent, empty or the default."""
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
