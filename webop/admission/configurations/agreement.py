"""Decide the webhooks of an operator from the records of its replicas.

Pure. All replicas decide by the same rule, so they do not overwrite each other:

- If all replicas that do not retire have the same webhooks, these come into force.
- Else, as in a rollout, the webhooks in force stay as they are. So a new version changes nothing
  before the last replica of the old version retires. The newest replica leaves its webhooks beside
  the records, so that the one that retires puts them into force while it still serves its own.
- The digest of those in force is noted beside the records. Replicas that have these webhooks write
  them again if somebody has edited or deleted them.
- Replicas that are not ready decide nothing, except that the first one adds its webhooks.
- API servers call the address of the newest replica, and trust the CAs of all replicas. Only
  replicas at that address must agree: no calls meet the others.
- If no replica is left, only persistent webhooks stay. But a copy outside of pods never removes the
  webhooks of pods: that pods have served them is noted, too.

Caveats:
    In a rollout that removes or renames a handler, calls of its webhook can meet replicas that do
    not have the handler any more. They refuse, so that nothing passes unchecked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from webop.admission.configurations.replicas import (
    Json,
    ReplicaRecord,
    build_bundle,
    join_address,
    parse_bundle,
    split_address,
)
from webop.errors import ConfigurationError
from webop.handlers.model import WebhookType

Webhooks = Mapping[WebhookType, Sequence[Json]]

# Defaults of the API server (Kubernetes API, admissionregistration.k8s.io/v1).
_DEFAULTS: Json = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "reinvocationPolicy": "Never",
    "timeoutSeconds": 10,
}

_MAX_PENDING = 128 * 1024  # bytes; all annotations of an object have 256 KiB
_IN_FORCE, _PENDING, _HAS_PODS = "webop.dev/in-force", "webop.dev/pending", "webop.dev/has-pods"
NOTES = (_IN_FORCE, _PENDING, _HAS_PODS)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one replica serves.

    Attributes:
        webhooks: its webhooks, with the address and the CAs of its server.
        persistent: whether they stay when no replica is left, by their types and names.
        is_in_pod: whether the replica is in a pod.
        address: where it is reached (:attr:`ReplicaRecord.address`).
        cas: its CA certificates in PEM.
        digest: of its webhooks.
    """

    webhooks: Webhooks
    persistent: Mapping[tuple[WebhookType, str], bool]
    is_in_pod: bool
    address: Json
    cas: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Notes:
    """What replicas note beside their records.

    Attributes:
        in_force: the digest of the webhooks for which they have agreed.
        pending: the webhooks of the newest replica, if others are in force (as JSON).
        has_pods: whether pods have served the webhooks.
    """

    in_force: str = ""
    pending: str = ""
    has_pods: bool = False

    @classmethod
    def parse(cls, annotations: Mapping[str, str]) -> Notes:
        """Read the annotations of a configuration."""
        get = annotations.get
        return cls(get(_IN_FORCE, ""), get(_PENDING, ""), _HAS_PODS in annotations)

    def encode(self) -> dict[str, str]:
        """Return the annotations, without empty ones."""
        texts = (self.in_force, self.pending, "true" if self.has_pods else "")
        return {name: text for name, text in zip(NOTES, texts, strict=True) if text}


_NO_NOTES = Notes()


@dataclass(frozen=True, slots=True)
class Decision:
    """The webhooks to write.

    Attributes:
        webhooks: of both configurations.
        is_own: whether these are the webhooks that the deciding replica serves.
        newest: the replica that API servers call; None if none is left.
        notes: to write beside the records.
    """

    webhooks: Webhooks
    is_own: bool
    newest: ReplicaRecord | None
    notes: Notes = _NO_NOTES


def build_offer(
    webhooks: Webhooks,
    persistent: Mapping[tuple[WebhookType, str], bool],
    config: Mapping[str, Any],
    *,
    is_in_pod: bool,
) -> Offer:
    """Return the offer of a replica whose server has yielded a config.

    Raises:
        ConfigurationError: the config is not usable.
    """
    address, cas = split_address(config)[0], parse_bundle(config.get("caBundle"))
    return Offer(webhooks, persistent, is_in_pod, address, cas, build_digest(webhooks))


def build_digest(webhooks: Webhooks) -> str:
    """Return a digest of webhooks without their address and CAs."""
    contents = [[_reduce(one) for one in webhooks[kind]] for kind in WebhookType]
    text = orjson.dumps(contents, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def decide(
    found: Webhooks,
    others: Collection[ReplicaRecord],
    offer: Offer,
    mine: ReplicaRecord | None,
    *,
    notes: Notes = _NO_NOTES,
    is_final: bool = False,
) -> Decision:
    """Decide what must be in force.

    Args:
        found: the webhooks in the cluster.
        others: the live replicas except this one.
        offer: what this replica serves.
        mine: the record of this replica; None if it leaves.
        notes: those in the cluster.
        is_final: whether only persistent webhooks stay if it is the last one that leaves.
    """
    records = [*others, *([] if mine is None else [mine])]
    acting = [record for record in records if not record.is_retired]
    has_pods = notes.has_pods or offer.is_in_pod
    if not records:
        kept = found
        if is_final and has_pods == offer.is_in_pod:
            kept = {
                kind: [
                    one for one in webhooks if offer.persistent.get((kind, one["name"]), has_pods)
                ]
                for kind, webhooks in found.items()
            }
        left = Notes(has_pods=has_pods and any(kept.values()))
        return Decision(kept, is_own=True, newest=None, notes=left)
    newest = max(acting, key=lambda record: (record.is_ready, record.since), default=None)
    crew = [record for record in acting if record.address == (newest and newest.address)]
    # At the very first start, or beside what has stayed, a replica only adds webhooks.
    is_added = not notes.in_force and all(
        _reduce(one) in map(_reduce, offer.webhooks[kind]) for kind in found for one in found[kind]
    )
    digests = {record.digest for record in crew if record.is_ready or is_added}
    in_force, pending = notes.in_force, notes.pending
    agreed = digests.pop() if len(digests) == 1 else in_force
    known = {**decode_webhooks(pending), offer.digest: offer.webhooks}
    content, in_force = (known[agreed], agreed) if agreed in known else (found, in_force)
    if newest is not None and newest.digest == in_force:
        pending = ""
    elif newest is not None and newest.digest == offer.digest:
        pending = encode_webhooks(offer.webhooks)
    bundle = build_bundle(pem for record in records for pem in record.cas)
    webhooks = {}
    for kind, several in content.items():
        webhooks[kind] = list[Json]()
        for webhook in several:
            address, path = split_address(webhook["clientConfig"])
            config = join_address(newest.address if newest else address, path)
            webhooks[kind].append({**webhook, "clientConfig": {**config, **bundle}})
    is_own = build_digest(webhooks) == offer.digest
    return Decision(webhooks, is_own, newest, Notes(in_force, pending, has_pods))


def encode_webhooks(webhooks: Webhooks) -> str:
    """Return webhooks without their CAs as a text for an annotation; empty if it is too long."""
    plain = [
        [
            {**one, "clientConfig": join_address(*split_address(one["clientConfig"]))}
            for one in webhooks[kind]
        ]
        for kind in WebhookType
    ]
    text = orjson.dumps(plain).decode()
    return text if len(text) < _MAX_PENDING else ""


def decode_webhooks(text: str) -> dict[str, Webhooks]:
    """Reverse :func:`encode_webhooks`; return none if they cannot be read, else with the digest."""
    try:
        webhooks = dict(zip(WebhookType, orjson.loads(text), strict=True))
        return {build_digest(webhooks): webhooks}
    except (ValueError, TypeError, LookupError, AttributeError, ConfigurationError):
        return {}


def is_same(one: Sequence[Json], other: Sequence[Json]) -> bool:
    """Return whether webhooks are equal, except for defaults that the API server has added."""
    return [*map(_get_key, one)] == [*map(_get_key, other)]


def _get_key(webhook: Json) -> tuple[Any, ...]:
    config = webhook["clientConfig"]
    return _reduce(webhook), split_address(config), config.get("caBundle") or ""


def _reduce(webhook: Mapping[str, Any]) -> Json:
    """Drop the address, the CAs, and the fields that are empty or have their defaults."""
    reduced = {k: v for k, v in webhook.items() if v and v != _DEFAULTS.get(k)}
    reduced["clientConfig"] = split_address(webhook["clientConfig"])[1]
    rules = webhook.get("rules") or ()
    reduced["rules"] = [
        {k: v for k, v in rule.items() if (k, v) != ("scope", "*")} for rule in rules
    ]
    return reduced
