"""The certificate that all replicas of an operator share, in a Secret that any of them renews.

The Secret is like a file on another host. It has the type ``kubernetes.io/tls``: ``tls.crt`` and
``tls.key`` are the certificate, ``ca.crt`` the CAs that clients must trust. If a new certificate is
due, each replica tries to write one with the ``resourceVersion`` that it has read, so the first one
wins, and the others read again. All replicas go on with the previous certificate until API servers
trust the new one. No private key of a CA is stored.

Whose Secret it is follows from the issuer of the certificate. Secrets of others are only read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from webop.aio.backoff import Once
from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.errors import (
    APIConflictError,
    APIError,
    APINotFoundError,
    APIStatusError,
    ConfigurationError,
    WebopError,
)
from webop.keymaterial import load_key_material
from webop.servers.certificates import certs
from webop.servers.certificates.sources import CertificateSource, Material, join_bundles
from webop.servers.limits import ClusterAccess

logger = logging.getLogger(__name__)

# Users request a rotation by any new value of the first; the second is the last one granted.
_REQUESTED, _GRANTED = "webop.dev/rotate", "webop.dev/rotated"
# What earlier versions wrote.
_FORMER = ("webop.dev/certificate", "webop.dev/renew-at", "next.crt", "next.key")
_OWNER = "app.kubernetes.io/managed-by"
_PRECEDENCE = 1.5  # intervals, so that others have certainly looked
_CHECKED = 10  # certificates of a chain, and CAs; each with each takes 0.3 ms
_RENEWAL_SHARE = 2 / 3  # of the lifetime; the rest is for repairing what prevents the renewal


@dataclass(frozen=True, slots=True)
class Content:
    """The usable content of the Secret.

    Attributes:
        is_own: whether webop made it.
        pair: the certificate and its key; None if there is no usable one.
        certificate: what is in the certificate.
        cas: the CAs that clients must trust; in an own Secret, that of the certificate first.
        is_requested: whether a user has requested a new certificate.
    """

    is_own: bool
    pair: certs.KeyPair | None = None
    certificate: certs.Certificate | None = None
    cas: tuple[bytes, ...] = ()
    is_requested: bool = False

    @property
    def is_due(self) -> bool:
        """Whether an own Secret needs a new certificate."""
        if self.certificate is None or self.is_requested:
            return True
        if self.certificate.start > dt.datetime.now(dt.UTC):  # the clock of who made it was wrong
            return True
        lifetime = self.certificate.end - self.certificate.start - certs.CLOCK_SKEW
        return not self.is_recent(_RENEWAL_SHARE * lifetime)

    def is_recent(self, period: dt.timedelta) -> bool:
        """Return whether the certificate was made within a period before now."""
        if self.certificate is None:
            return False
        made = self.certificate.start + (certs.CLOCK_SKEW if self.is_own else dt.timedelta())
        return dt.datetime.now(dt.UTC) - made < period


def parse_secret(document: Mapping[str, Any] | None) -> Content:
    """Parse a Secret from the API server; None is an absent one."""
    if document is None:
        return Content(is_own=True)
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    data = {key: base64.b64decode(value) for key, value in (document.get("data") or {}).items()}
    pair = certs.KeyPair(data.get("tls.crt", b""), data.get("tls.key", b""))
    cas: tuple[bytes, ...] = ()
    with contextlib.suppress(ValueError):
        cas = certs.split_certificates(data.get("ca.crt", b""))
    try:
        load_key_material(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair.cert, pair.key)
        found, chain = certs.read_certificate(pair.cert), certs.split_certificates(pair.cert)
        checked = chain[:_CHECKED]
        signers = [ca for ca in cas[:_CHECKED] if any(certs.is_signed_by(c, ca) for c in checked)]
    except Exception:  # noqa: BLE001 - cryptography has many
        return Content(is_own=(metadata.get("labels") or {}).get(_OWNER) == "webop")
    if not certs.OWN_CA.match(found.issuer):
        # The certificate is its own CA; the bundle may be that of the previous certificate.
        cas = cas if signers else (*chain, *cas)
        return Content(is_own=False, pair=pair, certificate=found, cas=cas)
    if not signers:
        return Content(is_own=True)  # clients would not trust it
    requested = annotations.get(_REQUESTED, "")
    return Content(
        is_own=True,
        pair=pair,
        certificate=found,
        cas=tuple(dict.fromkeys((*signers, *cas))),
        is_requested=requested not in ("", annotations.get(_GRANTED)),
    )


def build_secret(
    present: Mapping[str, Any], pair: certs.KeyPair, cas: tuple[bytes, ...]
) -> dict[str, Any]:
    """Build the Secret to write, with a certificate and the CAs that clients must trust.

    ``present`` is the Secret in the cluster, or just its name and namespace. Data of others stays,
    and the write fails if the Secret has changed (``resourceVersion``).
    """
    metadata = present["metadata"]
    known = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in _FORMER}
    annotations = {**known, _GRANTED: known.get(_REQUESTED, "")}
    labels = {_OWNER: "webop", **(metadata.get("labels") or {})}
    parts = {"tls.crt": pair.cert, "tls.key": pair.key, "ca.crt": b"".join(cas)}
    data = {key: base64.b64encode(part).decode() for key, part in parts.items()}
    kept = {k: v for k, v in (present.get("data") or {}).items() if k not in _FORMER}
    return {
        "type": "kubernetes.io/tls",
        **present,
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**metadata, "annotations": annotations, "labels": labels},
        "data": {**kept, **data},
    }


@dataclass(kw_only=True, eq=False)
class SecretSource(CertificateSource):
    """A Secret in the cluster.

    Args:
        hostnames: those that the certificate needs; the first is the common name.
        lifetime: of the certificates that webop makes.
        read_extra: reads the CA certificates to trust beside those in the Secret.
    """

    interval: float
    cluster: ClusterAccess
    namespace: str
    name: str
    hostnames: tuple[str, ...]
    lifetime: dt.timedelta
    read_extra: Callable[[], Material] = Material
    _loaded: Content = Content(is_own=True)
    _loaded_since: float = 0.0  # by the monotonic clock
    _once: Once = field(default_factory=Once)

    def __post_init__(self) -> None:
        self._path = f"/api/v1/namespaces/{self.namespace}/secrets"
        self._title = f"The Secret {self.namespace}/{self.name}"

    async def load(self) -> Material:
        """Read the Secret; write a certificate first, if one is due and nobody else is faster."""
        extra = await call_in_dedicated_thread(self.read_extra)  # a networked disk can be slow
        try:
            content = parse_secret(document := await self._read())
            if content.pair is None and self._loaded.pair is None:
                # A replica that serves knows the CAs in use: it writes the next certificate first.
                await asyncio.sleep(_PRECEDENCE * self.interval)
                content = parse_secret(document := await self._read())
            # Who has made a Secret that is gone will make it again.
            is_own = content.is_own and (self._loaded.is_own or document is not None)
            if is_own and (planned := self._plan(content)) is not None:
                absent = {"metadata": {"name": self.name, "namespace": self.namespace}}
                body = build_secret(document or absent, *planned)
                content = await self._write(content, body, is_new=document is None)
        except APIStatusError as exc:
            if exc.status >= 500 or exc.status == 429:
                raise
            raise ConfigurationError(
                f"{self._title} for the certificates of the webhook server cannot be used: {exc} "
                "The service account needs the verbs get and update for it, and create for "
                "secrets in its namespace. Or use another one by secret= and namespace=, or files "
                "by certfile= and pkeyfile=."
            ) from exc
        if content.pair is None:
            raise WebopError(
                f"{self._title} has no certificate that can be used in tls.crt and tls.key. "
                "Waiting for its owner; delete it to let webop make one."
            )
        if self._loaded.is_own and not content.is_own:
            logger.info("%s was not made by webop: webop only reads it.", self._title)
        if content.pair != self._loaded.pair:
            self._loaded_since = time.monotonic()
        self._loaded = content
        bundle = join_bundles(*(content.cas[:1] if content.is_own else content.cas), extra.bundle)
        # Old CAs in the Secret show that others may still use an old certificate.
        is_recent = len(content.cas) > 1 or content.is_recent(dt.timedelta(seconds=self.overlap))
        return Material(content.pair.cert, content.pair.key, bundle, is_recent)

    async def _read(self) -> dict[str, Any] | None:
        try:
            return dict(await self.cluster.request("GET", f"{self._path}/{self.name}"))
        except APINotFoundError:
            return None

    def _plan(self, content: Content) -> tuple[certs.KeyPair, tuple[bytes, ...]] | None:
        """Return the certificate and the CAs to write into an own Secret; None if it is right."""
        found, ca = content.certificate, content.cas[:1]
        present = frozenset() if found is None else found.hostnames
        has_names = present.issuperset(self.hostnames)
        if content.is_due or not has_names:
            # Replicas of two versions can need different names. Keep the present ones, or they
            # would replace each other's certificates for ever.
            others = () if has_names else sorted(present.difference(self.hostnames))
            made, new = certs.build_certificate_of_own_ca((*self.hostnames, *others), self.lifetime)
            # The replicas go on with the previous certificate for a while.
            return made, tuple(dict.fromkeys((new, *ca, *self._loaded.cas[:1])))
        pair, is_over = content.pair, time.monotonic() >= self._loaded_since + self.overlap
        if pair is not None and pair == self._loaded.pair and content.cas != ca and is_over:
            return pair, ca
        return None

    async def _write(self, content: Content, body: dict[str, Any], *, is_new: bool) -> Content:
        where = ("POST", self._path) if is_new else ("PUT", f"{self._path}/{self.name}")
        try:
            written = parse_secret(await self.cluster.request(*where, body))
        except APIError as exc:
            is_gone = isinstance(exc, APINotFoundError) and not is_new
            if is_gone or isinstance(exc, APIConflictError):  # another replica was faster
                return parse_secret(await self._read())
            if content.pair is None:
                raise
            if self._once.is_new("renewal", str(exc)):
                logger.warning("%s cannot be written; retrying: %s", self._title, exc)
            return content
        self._once.forget("renewal")
        is_same = written.pair == content.pair
        what = "removed the old CAs" if is_same else "wrote a new certificate"
        logger.info("%s: %s.", self._title, what)
        return written
