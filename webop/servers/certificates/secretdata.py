"""Read and build the Secret with the certificate that replicas share.

Pure. The Secret has the type ``kubernetes.io/tls``: ``tls.crt`` and ``tls.key`` are in use,
``ca.crt`` is the CA bundle. During a rotation, it has ``next.crt`` and ``next.key``, too. The
private keys of the CAs are not kept.
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

# Users request a rotation by any new value of the first; the second is the last one granted.
_REQUESTED, _GRANTED = "webop.dev/rotate", "webop.dev/rotated"
_RENEWAL = "webop.dev/renew-at"
# The digest of ``tls.crt``: if it does not match, somebody else has replaced the certificate.
_DIGEST = "webop.dev/certificate"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A server certificate with its key, in PEM, valid until ``expiry``, for ``names``.

    ``ca`` is the certificate of its CA; None if that is not in the bundle.
    """

    cert: bytes
    key: bytes = field(repr=False)
    ca: bytes | None
    expiry: dt.datetime
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shared:
    """The usable content of the Secret; everything is empty without a Secret.

    Attributes:
        uid: of the Secret; it changes when the Secret is deleted and created again.
        leaf: the certificate to serve.
        upcoming: the certificate to serve next, during a rotation.
        cas: the CA bundle: the CA certificates that clients must trust.
        renew_at: when to begin the next rotation; None if it is due, or requested by a user.
        is_foreign: whether somebody else has made the certificate: webop does not change it.
    """

    uid: str = ""
    leaf: Leaf | None = None
    upcoming: Leaf | None = None
    cas: tuple[bytes, ...] = ()
    renew_at: dt.datetime | None = None
    is_foreign: bool = False


def parse_secret(document: Mapping[str, Any]) -> Shared:
    """Parse a Secret from the API server; skip unusable parts."""
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
    leaf, digest = found.get("tls"), annotations.get(_DIGEST)
    is_foreign = digest is None or (leaf is not None and digest != _digest(leaf.cert))
    if is_foreign and leaf is not None:
        chain = certs.split_certificates(leaf.cert)
        # The certificate is its own CA; the bundle may be that of the previous certificate.
        if not any(certs.is_signed_by(pem, ca) for pem in chain for ca in cas):
            cas = (*chain, *cas)
    else:  # clients would not trust the others
        found = {name: leaf for name, leaf in found.items() if leaf.ca is not None}
    renew_at, requested = None, annotations.get(_REQUESTED, "")
    if not requested or requested == annotations.get(_GRANTED):
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
        present: the Secret in the cluster, or just its name and namespace. Data of others stays,
            and the write fails if the Secret has changed (``resourceVersion``).
        shared: the new content.
    """
    metadata, leaf, upcoming = present["metadata"], shared.leaf, shared.upcoming
    annotations = dict(metadata.get("annotations") or {})
    annotations[_DIGEST] = _digest(leaf.cert) if leaf else ""
    annotations[_RENEWAL] = ""
    if shared.renew_at is not None:
        annotations[_RENEWAL] = shared.renew_at.isoformat(timespec="seconds")
        annotations[_GRANTED] = annotations.get(_REQUESTED, "")
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
    """Make a certificate with a separate CA; the first name is the common name."""
    pair, ca = certs.build_certificate_of_own_ca(names, lifetime)
    return read_leaf(pair.cert, pair.key, (ca,))


def read_leaf(cert: bytes, key: bytes, cas: tuple[bytes, ...]) -> Leaf:
    """Check a certificate and its key, and find its CA in a bundle.

    Raises:
        ValueError: it is not a certificate, or the key does not belong to it.
    """
    try:
        load_key_material(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
    except (ssl.SSLError, ConfigurationError) as error:
        raise ValueError(f"The key does not belong to the certificate: {error}") from error
    try:
        certs.split_certificates(cert)  # the whole chain must be readable
        ca = next((pem for pem in cas if certs.is_signed_by(cert, pem)), None)
        return Leaf(cert, key, ca, certs.get_expiry(cert), certs.read_hostnames(cert))
    except Exception as error:  # cryptography has many
        raise ValueError(f"The certificate cannot be parsed: {error}") from error


def _digest(pem: bytes) -> str:
    return hashlib.sha256(pem).hexdigest()
