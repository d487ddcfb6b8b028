"""The records of replicas, and what follows from them for the webhooks of their operator.

Pure. Each replica has one record: an annotation of the validating webhook configuration. Replicas
know each other by these records only, so they need no other permissions than those for the object.
A record has a digest of the replica's webhooks, not the webhooks: records stay small. All replicas
decide by the same rule, so they do not overwrite each other:

- If all replicas that do not retire have the same webhooks, these come into force.
- Else, as in a rollout, the webhooks in force stay as they are. So a new version changes nothing
  before the last replica of the old version retires. The newest replica leaves its webhooks beside
  the records, so that the one that retires puts them into force while it still serves its own.
- The digest of those in force is noted beside the records. Replicas that have these webhooks write
  them again if somebody has edited or deleted them.
- Replicas decide nothing before they are ready and have written both configurations once, except
  that the first one adds its webhooks. So a replica that dies between its writes holds up nobody.
- API servers call the address of the newest replica that is ready, and trust the CAs of all
  replicas. Only replicas at that address must agree: no calls meet the others.
- Conversions between the versions of a kind come into force when all replicas at the address serve
  them, and stay when no replica is left, because reads would fail or lose fields without them.
- If no replica is left, only persistent webhooks stay. But a copy outside of pods never removes the
  webhooks of pods: that pods have served them is noted, too.

Caveats:
    In a rollout that removes or renames a handler, calls of its webhook can meet replicas that do
    not have the handler any more. They refuse, so that nothing passes unchecked.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from webop.errors import ConfigurationError
from webop.handlers.model import WebhookType
from webop.keymaterial import find_certificates
from webop.logs.sanitizing import escape

Json = dict[str, Any]

PREFIX = "replica.webop.dev/"
_DEFAULT_PORT = 443  # of a Service, by the API server
_LIFETIME = 180.0  # seconds; of a record that does not say it
_LONGEST_LIFETIME = 86400.0  # seconds; of other replicas, by their records
_PATIENCE = 3  # own renewals in which the record of another replica may stay the same

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """A replica, as it describes itself to the others.

    Attributes:
        identity: its name, for people.
        since: when it was started, in ISO format by its own clock, but after all replicas before.
        renewed: when it renewed the record last. Others do not compare it with their clocks: they
            notice that it changes.
        lifetime: after how many seconds without a change it counts as dead.
        address: where it is reached: a ``clientConfig`` without path and CA bundle. Replicas
            behind one Service have the same address, and calls meet any of them. It is empty if
            the replica has retired: it takes no more calls, but its CAs must stay trusted.
        cas: its CA certificates in PEM.
        digest: of its webhooks; empty if it has retired, and in records of other versions.
        is_ready: whether it can judge objects, and has written both configurations once. Until
            then, its webhooks replace no others.
        converts: the names of the CustomResourceDefinitions whose objects it converts between
            versions.
    """

    identity: str
    since: str = ""
    renewed: str = ""
    lifetime: float = _LIFETIME
    address: Json = field(default_factory=dict)
    cas: tuple[str, ...] = ()
    digest: str = ""
    is_ready: bool = True
    converts: tuple[str, ...] = ()

    @property
    def is_retired(self) -> bool:
        """Whether the replica takes no more calls."""
        return not self.address

    @property
    def place(self) -> str:
        """The address as text, for messages."""
        return describe_place(self.address)

    def is_fresh(self, now: dt.datetime) -> bool:
        """Return whether it was renewed lately, if clocks agree: for people, not for replicas."""
        try:
            age = now - dt.datetime.fromisoformat(self.renewed)
        except (ValueError, TypeError):
            return False
        return age.total_seconds() <= self.lifetime

    def retire(self) -> ReplicaRecord:
        """Return the record of a replica that takes no more calls: only its CAs remain."""
        return replace(self, address={}, digest="")

    def encode(self) -> str:
        """Return the text of the annotation."""
        document = {
            "identity": self.identity,
            "since": self.since,
            "renewed": self.renewed,
            "lifetime": self.lifetime,
            "address": self.address,
            "ca": "".join(f"{pem}\n" for pem in self.cas),
            "digest": self.digest,
            "ready": self.is_ready,
            **({"converts": self.converts} if self.converts else {}),
        }
        return orjson.dumps(document).decode()


def decode_record(text: str) -> ReplicaRecord:
    """Read an annotation, also of another version of webop, or one that somebody has edited.

    A text that cannot be read counts as a replica that has retired, until it has not changed for
    long.
    """
    try:
        document = orjson.loads(text)
        lifetime, address = float(document["lifetime"]), dict(document["address"])
        # Invalid numbers and times are errors here, not later.
        math.ceil(lifetime)
        follow(str(document["since"]), str(document["renewed"]))
        return ReplicaRecord(
            identity=escape(str(document["identity"])),
            since=str(document["since"]),
            renewed=str(document["renewed"]),
            lifetime=lifetime,
            address=split_address(address)[0] if address else {},
            cas=split_certificates(document["ca"]),
            digest=str(document.get("digest") or ""),
            is_ready=bool(document.get("ready", True)),
            converts=tuple(map(str, document.get("converts") or ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, ConfigurationError):
        return ReplicaRecord(identity="an unreadable record")


def follow(*times: str) -> str:
    """Return now, or a millisecond after the last of some times, in ISO format.

    Raises:
        ValueError, OverflowError: one is not a time.
    """
    moments = [dt.datetime.fromisoformat(time).astimezone(dt.UTC) for time in times]
    later = [moment + dt.timedelta(milliseconds=1) for moment in moments]
    return max([dt.datetime.now(dt.UTC), *later]).isoformat(timespec="milliseconds")


@dataclass(eq=False)
class Attendance:
    """Which other replicas are alive: those whose records change, by the reads of this replica.

    Time is counted in its own renewals, not by a clock: if it cannot renew its record because the
    API server is unavailable or refuses, then others may be unable to, and nobody is declared dead.

    Attributes:
        renewals: how often this replica has renewed its record.
        dead: the identities of those that were not alive at the last read.
    """

    renewals: int = 0
    dead: list[str] = field(default_factory=list)
    _seen: dict[str, tuple[str, int]] = field(default_factory=dict)  # when each text was new

    def select(self, records: Mapping[str, str], renewal: float) -> dict[str, ReplicaRecord]:
        """Return the live ones of some records; with the seconds between its own renewals."""
        before, live = self._seen, dict[str, ReplicaRecord]()
        self._seen, self.dead = {}, []
        for key, text in records.items():
            known, since = before.get(key, ("", 0))
            self._seen[key] = (text, since if known == text else self.renewals)
            record = decode_record(text)
            lifetime = min(record.lifetime, _LONGEST_LIFETIME)
            patience = max(_PATIENCE, math.ceil(lifetime / renewal))
            if self.renewals - self._seen[key][1] <= patience:
                live[key] = record
            else:
                self.dead.append(record.identity)
        return live


def build_key(identity: str) -> str:
    """Return the name of a replica's annotation: a hash, as identities can have any characters."""
    return f"{PREFIX}{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


def split_address(config: Mapping[str, Any]) -> tuple[Json, str]:
    """Split the ``clientConfig`` of a webhook into the address of the replicas and the path.

    Raises:
        ConfigurationError: it has neither a URL nor a service, or both.
    """
    url, service = config.get("url"), config.get("service")
    if bool(url) == bool(service):
        raise ConfigurationError(
            "A webhook server (settings.admission.server) must yield a client config with either "
            f"'url' or 'service'; got {'both' if url else 'neither'}."
        )
    if url:
        scheme, separator, rest = str(url).partition("://")
        host, slash, path = rest.partition("/")
        return {"url": f"{scheme}{separator}{host}"}, f"{slash}{path}"
    assert service is not None  # noqa: S101 - for the type checker
    place = {key: value for key, value in service.items() if value is not None}
    path = str(place.pop("path", ""))
    return {"service": {**place, "port": place.get("port", _DEFAULT_PORT)}}, path


def join_address(address: Mapping[str, Any], path: str) -> Json:
    """Return a ``clientConfig`` without CA bundle: the reverse of :func:`split_address`."""
    if "url" in address:
        return {"url": f"{address['url']}{path}"}
    return {"service": {**address["service"], "path": path}}


def describe_place(config: Mapping[str, Any]) -> str:
    """Return the address in a ``clientConfig`` as text, for messages."""
    if not (service := config.get("service")):
        return str(config.get("url") or "unknown")
    port = service.get("port") or _DEFAULT_PORT
    return f"the Service {service.get('namespace')}/{service.get('name')}, port {port}"


def split_certificates(text: str) -> tuple[str, ...]:
    """Return the certificates in a PEM text, one by one.

    A text without certificates is returned unchanged: the API server then says what is wrong.
    """
    found = (cert.decode() for cert in find_certificates(text.encode()))
    return tuple(found) or tuple(filter(None, [text.strip()]))


def parse_bundle(bundle: str | None) -> tuple[str, ...]:
    """Return the certificates in a ``caBundle`` (base64 of PEM).

    Raises:
        ConfigurationError: it is not base64 of text.
    """
    if not bundle:
        return ()
    try:
        return split_certificates(
            base64.b64decode("".join(bundle.split()), validate=True).decode("ascii")
        )
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise ConfigurationError(
            f"The 'caBundle' of a webhook server must be base64 of certificates in PEM: {exc}."
        ) from None


def build_bundle(cas: Iterable[str]) -> Json:
    """Return the ``caBundle`` part of a ``clientConfig``; empty without certificates."""
    text = "".join(f"{pem}\n" for pem in dict.fromkeys(cas))
    return {"caBundle": base64.b64encode(text.encode()).decode("ascii")} if text else {}


@dataclass(frozen=True, slots=True)
class Offer:
    """What one replica serves.

    Attributes:
        webhooks: its webhooks, with the address and the CAs of its server.
        persistent: whether they stay when no replica is left, by their types and names.
        is_in_pod: whether the replica is in a pod.
        record: its record, without the name and the times.
        conversion_path: the path for conversions at its address.
    """

    webhooks: Webhooks
    persistent: Mapping[tuple[WebhookType, str], bool]
    is_in_pod: bool
    record: ReplicaRecord
    conversion_path: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of replicas beside their records.

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
        conversion: the ``clientConfig`` for conversions; empty if no replica is left.
        converts: the definitions that the deciding replica converts, and whether all replicas at
            the address do.
    """

    webhooks: Webhooks
    is_own: bool
    newest: ReplicaRecord | None
    notes: Notes = _NO_NOTES
    conversion: Json = field(default_factory=dict)
    converts: Mapping[str, bool] = field(default_factory=dict)


def build_offer(
    webhooks: Webhooks,
    persistent: Mapping[tuple[WebhookType, str], bool],
    config: Mapping[str, Any],
    *,
    is_in_pod: bool,
    converts: Iterable[str] = (),
) -> Offer:
    """Return the offer of a replica whose server has yielded a config for conversions."""
    (address, path), cas = split_address(config), parse_bundle(config.get("caBundle"))
    record = ReplicaRecord(
        identity="",
        address=address,
        cas=cas,
        digest=build_digest(webhooks),
        converts=(*converts,),
    )
    return Offer(webhooks, persistent, is_in_pod, record, path)


def build_digest(webhooks: Webhooks) -> str:
    """Return a digest of webhooks without their address and CAs."""
    contents = [[simplify(one) for one in webhooks[kind]] for kind in WebhookType]
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
        simplify(one) in map(simplify, offer.webhooks[kind])
        for kind in found
        for one in found[kind]
    )
    digests = {record.digest for record in crew if record.is_ready or is_added}
    in_force, pending = notes.in_force, notes.pending
    agreed = digests.pop() if len(digests) == 1 else in_force
    known = {**decode_webhooks(pending), offer.record.digest: offer.webhooks}
    content, in_force = (known[agreed], agreed) if agreed in known else (found, in_force)
    if newest is not None and newest.digest == in_force:
        pending = ""
    elif newest is not None and newest.digest == offer.record.digest:
        pending = encode_webhooks(offer.webhooks)
    bundle = build_bundle(pem for record in records for pem in record.cas)
    webhooks = {}
    for kind, several in content.items():
        webhooks[kind] = list[Json]()
        for webhook in several:
            address, path = split_address(webhook["clientConfig"])
            config = join_address(newest.address if newest else address, path)
            webhooks[kind].append({**webhook, "clientConfig": {**config, **bundle}})
    is_own = build_digest(webhooks) == offer.record.digest
    left = Notes(in_force, pending, has_pods)
    if newest is None:
        return Decision(webhooks, is_own, newest, left)
    conversion = {**join_address(newest.address, offer.conversion_path), **bundle}
    converts = {name: all(name in each.converts for each in crew) for name in offer.record.converts}
    return Decision(webhooks, is_own, newest, left, conversion, converts)


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
    return simplify(webhook), split_address(config), config.get("caBundle") or ""


def simplify(webhook: Mapping[str, Any]) -> Json:
    """Drop the address, the CAs, and the fields that are empty or have their defaults."""
    reduced = {k: v for k, v in webhook.items() if v and v != _DEFAULTS.get(k)}
    reduced["clientConfig"] = split_address(webhook["clientConfig"])[1]
    rules = webhook.get("rules") or ()
    reduced["rules"] = [
        {k: v for k, v in rule.items() if (k, v) != ("scope", "*")} for rule in rules
    ]
    return reduced
