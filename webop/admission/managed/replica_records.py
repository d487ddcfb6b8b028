"""The records of replicas in a webhook configuration: who is alive, and serves which webhooks.

Pure. Each replica has one record: an annotation of the configuration object. Replicas know each
other by these records only, so they need no other permissions than those for the object.
:mod:`webop.admission.managed.replicas` derives the webhooks from the records.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import orjson

from webop.errors import ConfigurationError
from webop.keymaterial import find_certificates

Json = dict[str, Any]

PREFIX = "replica.webop.dev/"
_DEFAULT_PORT = 443  # of a Service, by the API server
_LONGEST_PAUSE = 60.0  # seconds; between renewals


@dataclass(frozen=True, slots=True)
class Served:
    """A webhook as a replica serves it.

    Attributes:
        path: the path of its URL, by which the replica finds the handlers.
        targets: the resources that the replica judges there, such as "apps/v1/deployments".
    """

    path: str
    targets: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """A replica, as it describes itself to the others.

    Attributes:
        identity: its name, for people.
        since: when it was started; the newest replica decides on the fields of the webhooks.
        renewed: when it renewed the record last.
        lifetime: how many seconds after that it counts as dead.
        address: where it is reached: a ``clientConfig`` without path and CA bundle. Replicas
            behind one Service have the same address, and calls meet any of them.
        served: its webhooks by their names, in order.
        process: which process it is (:mod:`webop.identities`).
        cas: its CA certificates in PEM.
        definitions: its webhooks that differ from those in the cluster, by name, without
            ``clientConfig``: another replica may be the first that can write them.
        is_in_both: whether the other configuration has a record of the replica, too. If that
            record is missing, the replica was stopped in the middle of its withdrawal.
    """

    identity: str
    since: dt.datetime
    renewed: dt.datetime
    lifetime: float
    address: Json
    served: Mapping[str, Served]
    process: str = ""
    cas: tuple[str, ...] = ()
    definitions: Mapping[str, Json] = field(default_factory=dict)
    is_in_both: bool = False

    def is_alive(self, now: dt.datetime) -> bool:
        """Return whether the record is fresh; one from the future is: a clock is wrong."""
        return (now - self.renewed).total_seconds() <= self.lifetime

    @property
    def is_retired(self) -> bool:
        """Whether the replica takes no more calls."""
        return not self.address

    def retire(self) -> ReplicaRecord:
        """Return the record of a replica that takes no more calls: only its CAs remain."""
        return replace(self, address={}, served={}, definitions={})

    def get_targets(self, path: str) -> frozenset[str]:
        """Return the resources that the replica judges at a path; empty for an unknown path."""
        found = (served.targets for served in self.served.values() if served.path == path)
        return frozenset[str]().union(*found)

    def encode(self) -> str:
        """Return the text of the annotation."""
        served = {
            name: {"path": webhook.path, "targets": sorted(webhook.targets)}
            for name, webhook in self.served.items()
        }
        document = {
            "identity": self.identity,
            "process": self.process,
            "since": self.since.isoformat(),
            "renewed": self.renewed.isoformat(),
            "lifetime": self.lifetime,
            "address": self.address,
            "webhooks": served,
            "ca": "".join(f"{pem}\n" for pem in self.cas),
            "pending": dict(self.definitions),
            "both": self.is_in_both,
        }
        return orjson.dumps(document).decode()


def decode_record(text: str) -> ReplicaRecord | None:
    """Read an annotation; return None if it is not a valid record (somebody has edited it)."""
    try:
        document = orjson.loads(text)
        return ReplicaRecord(
            identity=str(document["identity"]),
            process=str(document.get("process") or ""),
            since=_parse_time(document["since"]),
            renewed=_parse_time(document["renewed"]),
            lifetime=float(document["lifetime"]),
            address=dict(document["address"]),
            served={
                name: Served(str(webhook["path"]), frozenset(map(str, webhook["targets"])))
                for name, webhook in document["webhooks"].items()
            },
            cas=split_certificates(document["ca"]),
            definitions={name: dict(value) for name, value in document["pending"].items()},
            is_in_both=bool(document.get("both")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def get_renewal(lifetime: float) -> float:
    """Return how often records with such a lifetime are renewed, in seconds."""
    return min(lifetime / 3, _LONGEST_PAUSE)


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


def list_targets(rules: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the resources in the rules of a webhook, such as "apps/v1/deployments"."""
    return frozenset(
        "/".join(parts)
        for rule in rules
        for parts in product(
            *(rule.get(key) or () for key in ("apiGroups", "apiVersions", "resources"))
        )
    )


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


def _parse_time(text: str) -> dt.datetime:
    """Parse an ISO time.

    Raises:
        ValueError: it is not a time, or has no time zone.
    """
    time = dt.datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(text)
    return time
