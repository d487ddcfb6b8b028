"""The Secret with the certificates that replicas share: from its document to values and back.

Pure. The keys of its data are those of the type ``kubernetes.io/tls``, as tools know them:
``tls.crt`` and ``tls.key`` are being served, ``ca.crt`` is what clients must trust. During a
rotation, there are ``next.crt`` and ``next.key``. The keys of the authorities are nowhere.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import ssl
from collections.abc import Mapping
from typing import Any

from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers.certificates.certs import (
    get_expiry,
    is_signed_by,
    read_hostnames,
    split_certificates,
)
from webop.servers.certificates.rotation import Leaf, Shared

#: Users ask for a rotation by any new value of it.
WISH = "webop.dev/rotate"
_GRANTED = "webop.dev/rotated"
_RENEWAL = "webop.dev/renew-at"
#: The digest of ``tls.crt``: if it does not match, somebody else has put another one there.
_MARK = "webop.dev/certificate"
_TYPE = "kubernetes.io/tls"


def parse_secret(document: Mapping[str, Any]) -> Shared:
    """Read a Secret as the API server returns it; what cannot be used is left out."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    data = {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}
    authorities = _split(data.get("ca.crt"))
    leaf = _read_leaf(data.get("tls.crt"), data.get("tls.key"), authorities)
    mark = annotations.get(_MARK)
    is_foreign = mark is None or (leaf is not None and mark != _digest(leaf.cert))
    if leaf is not None and is_foreign:
        # With no authority beside it, a certificate is its own one.
        authorities = authorities or _split(leaf.cert)
    elif leaf is not None and leaf.authority is None:
        leaf = None  # nobody would trust it
    return Shared(
        uid=metadata.get("uid", ""),
        leaf=leaf,
        upcoming=_read_leaf(data.get("next.crt"), data.get("next.key"), authorities),
        authorities=authorities,
        renew_at=_parse_time(annotations.get(_RENEWAL, "")),
        wish=annotations.get(WISH, ""),
        granted=annotations.get(_GRANTED, ""),
        is_foreign=is_foreign,
    )


def build_secret(
    present: Mapping[str, Any] | None, namespace: str, name: str, shared: Shared
) -> dict[str, Any]:
    """Build the Secret to write.

    Args:
        present: the one that is in the cluster, if any: what others have put into it stays, and
            the write fails if it has changed in the meantime (``resourceVersion``).
        namespace: where it is.
        name: its name.
        shared: the content.
    """
    document: dict[str, Any] = dict(present or {"type": _TYPE})
    metadata = dict(document.get("metadata") or {"name": name, "namespace": namespace})
    leaf, upcoming = shared.leaf, shared.upcoming
    annotations = {
        _MARK: _digest(leaf.cert) if leaf else "",
        _RENEWAL: shared.renew_at.isoformat(timespec="seconds") if shared.renew_at else "",
        _GRANTED: shared.granted,
    }
    parts = {
        "tls.crt": leaf and leaf.cert,
        "tls.key": leaf and leaf.key,
        "ca.crt": b"".join(shared.authorities),
        "next.crt": upcoming and upcoming.cert,
        "next.key": upcoming and upcoming.key,
    }
    kept = {key: text for key, text in (document.get("data") or {}).items() if key not in parts}
    written = {key: base64.b64encode(part).decode() for key, part in parts.items() if part}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    metadata["labels"] = {"app.kubernetes.io/managed-by": "webop", **(metadata.get("labels") or {})}
    return {
        **document,
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "data": {**kept, **written},
    }


def read_leaf(cert: bytes, key: bytes, authorities: tuple[bytes, ...]) -> Leaf:
    """Check that a certificate can be served with a key, and find its authority in a bundle.

    Raises:
        ValueError: it is not a certificate, or not with this key.
    """
    try:
        load_key_material(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
    except (ssl.SSLError, ConfigurationError) as error:
        raise ValueError(f"The certificate and the key do not fit together: {error}") from error
    return Leaf(
        cert=cert,
        key=key,
        authority=next((pem for pem in authorities if is_signed_by(cert, pem)), None),
        expiry=get_expiry(cert),
        names=read_hostnames(cert),
    )


def _read_leaf(
    cert: bytes | None, key: bytes | None, authorities: tuple[bytes, ...]
) -> Leaf | None:
    if not cert or not key:
        return None
    try:
        return read_leaf(cert, key, authorities)
    except ValueError:
        return None


def _split(pem: bytes | None) -> tuple[bytes, ...]:
    try:
        return split_certificates(pem) if pem else ()
    except ValueError:
        return ()


def _parse_time(text: str) -> dt.datetime | None:
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo is None else time


def _digest(pem: bytes) -> str:
    return hashlib.sha256(pem).hexdigest()
