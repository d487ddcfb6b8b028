"""The Secret with the certificate that replicas share: from its document to values and back.

Pure. The keys of its data are those of the type ``kubernetes.io/tls``, as tools know them:
``tls.crt`` and ``tls.key`` are being served, ``ca.crt`` is what clients must trust. During a
rotation, there are ``next.crt`` and ``next.key``. The keys of the CAs are nowhere.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers.certificates import certs

# Users ask for a rotation by any new value of the first one; the second one is the last granted.
_WISH, _GRANTED = "webop.dev/rotate", "webop.dev/rotated"
_RENEWAL = "webop.dev/renew-at"
# The digest of ``tls.crt``: if it does not match, somebody else has put another one there.
_MARK = "webop.dev/certificate"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate of a server with its key, in PEM, valid until ``expiry``, for ``names``.

    ``ca`` is the certificate of the CA that has signed it; None if that is not in the bundle.
    """

    cert: bytes
    key: bytes = field(repr=False)
    ca: bytes | None
    expiry: dt.datetime
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shared:
    """The content of the Secret, as far as it can be used; all of it is absent without one.

    Attributes:
        uid: of the Secret; another one means that it was deleted and created again.
        leaf: the certificate to serve.
        upcoming: the certificate to serve next, during a rotation.
        cas: the bundle of CA certificates that clients must trust.
        renew_at: when to begin the next rotation; None if that is due, as users can wish.
        is_foreign: whether somebody else has made the certificate: it is followed, not changed.
    """

    uid: str = ""
    leaf: Leaf | None = None
    upcoming: Leaf | None = None
    cas: tuple[bytes, ...] = ()
    renew_at: dt.datetime | None = None
    is_foreign: bool = False


def parse_secret(document: Mapping[str, Any]) -> Shared:
    """Read a Secret as the API server returns it; what cannot be used is left out."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    data = {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}
    cas: tuple[bytes, ...] = ()
    with contextlib.suppress(ValueError):
        cas = certs.split_certificates(data.get("ca.crt", b""))
    found: dict[str, Leaf] = {}
    for name in ("tls", "next"):
        with contextlib.suppress(ValueError):
            found[name] = read_leaf(data.get(f"{name}.crt", b""), data.get(f"{name}.key", b""), cas)
    leaf, mark = found.get("tls"), annotations.get(_MARK)
    is_foreign = mark is None or (leaf is not None and mark != _digest(leaf.cert))
    if is_foreign and leaf is not None:
        chain = certs.split_certificates(leaf.cert)
        # It is its own CA; also if the bundle is that of the previous certificate.
        if not any(certs.is_signed_by(pem, ca) for pem in chain for ca in cas):
            cas = (*chain, *cas)
    else:  # nobody would trust the others
        found = {name: leaf for name, leaf in found.items() if leaf.ca is not None}
    renew_at, wish = None, annotations.get(_WISH, "")
    if not wish or wish == annotations.get(_GRANTED):
        with contextlib.suppress(ValueError, OverflowError):
            renew_at = dt.datetime.fromisoformat(annotations.get(_RENEWAL, "")).astimezone(dt.UTC)
    return Shared(
        uid=metadata.get("uid", ""),
        leaf=found.get("tls"),
        upcoming=found.get("next"),
        cas=cas,
        renew_at=renew_at,
        is_foreign=is_foreign,
    )


def build_secret(present: Mapping[str, Any], shared: Shared) -> dict[str, Any]:
    """Build the Secret to write.

    Args:
        present: the one that is in the cluster, or no more than name and namespace: what others
            have put into it stays, and the write fails if it has changed (``resourceVersion``).
        shared: the content.
    """
    metadata, leaf, upcoming = present["metadata"], shared.leaf, shared.upcoming
    annotations = dict(metadata.get("annotations") or {})
    annotations[_MARK] = _digest(leaf.cert) if leaf else ""
    annotations[_RENEWAL] = ""
    if shared.renew_at is not None:
        annotations[_RENEWAL] = shared.renew_at.isoformat(timespec="seconds")
        annotations[_GRANTED] = annotations.get(_WISH, "")
    labels = {"app.kubernetes.io/managed-by": "webop", **(metadata.get("labels") or {})}
    parts = {
        "tls.crt": leaf and leaf.cert,
        "tls.key": leaf and leaf.key,
        "ca.crt": b"".join(shared.cas),
        "next.crt": upcoming and upcoming.cert,
        "next.key": upcoming and upcoming.key,
    }
    kept = {key: text for key, text in (present.get("data") or {}).items() if key not in parts}
    written = {key: base64.b64encode(part).decode() for key, part in parts.items() if part}
    return {
        "type": "kubernetes.io/tls",
        **present,
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**metadata, "annotations": annotations, "labels": labels},
        "data": {**kept, **written},
    }


def make_leaf(names: tuple[str, ...], lifetime: dt.timedelta) -> Leaf:
    """Make a certificate with a CA of its own; the first name is the common name."""
    pair, ca = certs.build_certificate_of_own_ca(names, lifetime)
    return read_leaf(pair.cert, pair.key, (ca,))


def read_leaf(cert: bytes, key: bytes, cas: tuple[bytes, ...]) -> Leaf:
    """Check that a certificate can be served with a key, and find its CA in a bundle.

    Raises:
        ValueError: it is not a certificate, or not with this key.
    """
    try:
        load_key_material(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
    except (ssl.SSLError, ConfigurationError) as error:
        raise ValueError(f"The certificate and the key do not fit together: {error}") from error
    ca = next((pem for pem in cas if certs.is_signed_by(cert, pem)), None)
    return Leaf(cert, key, ca, certs.get_expiry(cert), certs.read_hostnames(cert))


def _digest(pem: bytes) -> str:
    return hashlib.sha256(pem).hexdigest()
