"""The records of replicas: who is there, where, and with which webhooks.

Pure. Each replica has one record: an annotation of the validating webhook configuration. Replicas
know each other by these records only, so they need no other permissions than those for the object.
A record has a digest of the replica's webhooks, not the webhooks: records stay small.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from webop.errors import ConfigurationError
from webop.keymaterial import find_certificates
from webop.logs.escaping import escape

Json = dict[str, Any]

PREFIX = "replica.webop.dev/"
_DEFAULT_PORT = 443  # of a Service, by the API server
_LONGEST_PAUSE = 60.0  # seconds; between renewals
_LIFETIME = 180.0  # seconds; of a record that does not say it
_LONGEST_LIFETIME = 86400.0  # seconds; of other replicas, by their records
_PATIENCE = 3  # own renewals in which the record of another replica may stay the same


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
        digest: of its webhooks; empty in records of other versions of webop.
        is_ready: whether it can judge objects. Until then, its webhooks replace no others.
    """

    identity: str
    since: str = ""
    renewed: str = ""
    lifetime: float = _LIFETIME
    address: Json = field(default_factory=dict)
    cas: tuple[str, ...] = ()
    digest: str = ""
    is_ready: bool = True

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
