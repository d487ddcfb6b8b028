"""What replicas leave for each other on a webhook configuration: who is there, and serves what.

Pure. A mark is an annotation of the configuration object, one per replica. Replicas know of each
other by nothing else, so that they need no permissions beyond those for the object itself. How
the webhooks follow from the marks is in :mod:`webop.admission.managed.replicas`.
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
        path: of its address; what the replica goes by.
        targets: the resources that the replica judges there, such as "apps/v1/deployments".
    """

    path: str
    targets: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """A replica, as it describes itself to the others.

    Attributes:
        identity: its name, for people.
        since: when it was started; the newest one decides what is in the webhooks.
        renewed: when it was heard of last.
        lifetime: seconds from then on, after which it counts as gone.
        address: where it is reached, as a ``clientConfig`` without a path and authorities.
            Several replicas behind one Service have the same: then calls meet any of them.
        served: its webhooks by their names, in order.
        process: which process it is (:mod:`webop.identities`).
        authorities: whom to trust for it: certificates in PEM.
        definitions: webhooks that are not in force as it has them, by name, without
            ``clientConfig``: so that whoever can, puts them in force.
        is_in_both: whether the other configuration has a mark of the replica, too. If that is not
            there, the replica has ended in the middle of its withdrawal.
    """

    identity: str
    since: dt.datetime
    renewed: dt.datetime
    lifetime: float
    address: Json
    served: Mapping[str, Served]
    process: str = ""
    authorities: tuple[str, ...] = ()
    definitions: Mapping[str, Json] = field(default_factory=dict)
    is_in_both: bool = False

    def is_alive(self, now: dt.datetime) -> bool:
        """Tell whether it counts; a mark from the future does: somebody's clock is wrong."""
        return (now - self.renewed).total_seconds() <= self.lifetime

    @property
    def is_retired(self) -> bool:
        """Tell whether the replica takes no more calls."""
        return not self.address

    def retire(self) -> ReplicaRecord:
        """Return the mark of a replica that takes no more calls: only whom to trust."""
        return replace(self, address={}, served={}, definitions={})

    def get_targets(self, path: str) -> frozenset[str]:
        """Return all that the replica judges at a path; empty if it does not know the path."""
        found = (served.targets for served in self.served.values() if served.path == path)
        return frozenset[str]().union(*found)

    def encode(self) -> str:
        """Return it as the text of an annotation."""
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
            "ca": "".join(f"{pem}\n" for pem in self.authorities),
            "pending": dict(self.definitions),
            "both": self.is_in_both,
        }
        return orjson.dumps(document).decode()


def decode_mark(text: str) -> ReplicaRecord | None:
    """Read an annotation; None if it is not a mark: somebody has had a hand in it."""
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
            authorities=split_certificates(document["ca"]),
            definitions={name: dict(value) for name, value in document["pending"].items()},
            is_in_both=bool(document.get("both")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def get_renewal(lifetime: float) -> float:
    """Tell how often marks with such a lifetime are renewed, in seconds."""
    return min(lifetime / 3, _LONGEST_PAUSE)


def build_key(identity: str) -> str:
    """Return the name of the annotation of a replica, whatever its identity consists of."""
    return f"{PREFIX}{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


def split_address(config: Mapping[str, Any]) -> tuple[Json, str]:
    """Take the ``clientConfig`` of a webhook apart: where the replicas are, and the path there.

    Raises:
        ConfigurationError: it has neither a URL nor a service, or both.
    """
    url, service = config.get("url"), config.get("service")
    if bool(url) == bool(service):
        raise ConfigurationError(
            "The client config of a webhook server must have either 'url' or 'service', not "
            f"{'both' if url else 'neither'}. It is what the server of settings.admission.server "
            "yields."
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
    """Return a ``clientConfig`` without authorities: the other way round."""
    if "url" in address:
        return {"url": f"{address['url']}{path}"}
    return {"service": {**address["service"], "path": path}}


def list_targets(rules: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return what the rules of a webhook are for, such as "apps/v1/deployments"."""
    return frozenset(
        "/".join(parts)
        for rule in rules
        for parts in product(
            *(rule.get(key) or () for key in ("apiGroups", "apiVersions", "resources"))
        )
    )


def split_certificates(text: str) -> tuple[str, ...]:
    """Return the certificates in a text of PEM, one by one; the text itself if there are none.

    So what is not a certificate goes to the API server as it is, which tells what is wrong.
    """
    found = (cert.decode() for cert in find_certificates(text.encode()))
    return tuple(found) or tuple(filter(None, [text.strip()]))


def parse_bundle(bundle: str | None) -> tuple[str, ...]:
    """Return the certificates of a ``caBundle``: base64 of PEM."""
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


def build_bundle(authorities: Iterable[str]) -> Json:
    """Return the ``caBundle`` as a part of a ``clientConfig``; without any, there is none."""
    text = "".join(f"{pem}\n" for pem in dict.fromkeys(authorities))
    return {"caBundle": base64.b64encode(text.encode()).decode("ascii")} if text else {}


def _parse_time(text: str) -> dt.datetime:
    """Read a time.

    Raises:
        ValueError: it is none, or none with a time zone.
    """
    time = dt.datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(text)
    return time
