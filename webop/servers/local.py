"""Webhook servers that listen on a port of this host: a plain one, and those for local clusters.

Users' handler files import this module (``settings.admission.server = webop.WebhookServer()``), so
the HTTP server and cryptography are imported only when a server starts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import re
import ssl
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from webop.aio.backoff import Once
from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.errors import ConfigurationError, ReviewError, WebopError
from webop.identities import is_in_pod
from webop.servers.base import (
    BaseWebhookServer,
    SSLPeer,
    WebhookClientConfig,
    WebhookFn,
    build_url,
    get_reachable_address,
)
from webop.servers.certificates.contexts import LiveContext, StrPath, write_file
from webop.servers.certificates.expiry import ExpiryWatch
from webop.servers.certificates.sources import (
    CertificateSource,
    LocalSource,
    Material,
    join_bundles,
    read_material,
)
from webop.servers.limits import Hosting, get_hosting

if TYPE_CHECKING:
    from webop.servers.http.listener import Listener

logger = logging.getLogger(__name__)

_TRUST_SECONDS = 60.0
_CN = "commonName"
_HOST = re.compile(r"[-\w.]+|[0-9A-Fa-f:.]+(%\w+)?")  # a name, or an IPv6 address


class _ContradictionError(ConfigurationError, ValueError):
    """Two options exclude each other; a ValueError, too, as in Kopf."""


@dataclass(kw_only=True, eq=False, repr=False)
class WebhookServer(BaseWebhookServer):
    """A local HTTPS (or HTTP) endpoint for reviews, for development and for custom setups.

    ::

        settings.admission.server = webop.WebhookServer(port=9443)

    See docs/howto/webhook_servers.md.

    Args:
        addr: the address to listen on; empty for all interfaces. The default is "localhost", or
            all interfaces in a pod and with ``host``.
        port: the port to listen on; 9443 by default; 0 for a free one.
        path: the root path of the URLs; none by default.
        host: the hostname in the URLs; by default, the address.
        cadata: the CA certificates (PEM) that clients must trust; the server does not use them.
        cafile: the same in a file.
        cadump: a file to write the resulting CA bundle to, such as for ``curl --cacert``.
        context: a TLS context; the other options are loaded into it.
        insecure: serve plain HTTP; API servers do not connect to that.
        certfile: the server's certificate; by default, a self-signed one is generated.
        pkeyfile: its private key; by default, it is in ``certfile``.
        password: decrypts the key in the file, or encrypts the generated one.
        extra_sans: more names and addresses for the self-signed certificate.
        verify_mode: whether client certificates are requested and required; required by default
            if there are CA certificates that verify them.
        verify_cafile: the CA certificates (PEM) that verify client certificates.
        verify_capath: the same in a directory, as OpenSSL expects it.
        verify_cadata: the same as data.
        verify_subjects: the clients that can send reviews, by the common names or the DNS names in
            their certificates; reviews of others get 403. By default, all that are verified.
        file_check_interval: seconds between checks of the files for changes. Changed certificates
            are used for new connections; no connection is refused meanwhile.

    Note:
        Called with the framework's function, it listens, yields the config for its clients, and
        serves until its generator is closed. :meth:`watch_certificate` loads a certificate and
        yields the CA bundle for the clients. Then the listener starts. The config from
        :meth:`build_config` is yielded, and again each time the bundle changes. Override these two
        methods for certificates from elsewhere and for other addresses.
    """

    #: The hostname for the URLs without ``host``; None for the address.
    DEFAULT_HOST: ClassVar[str | None] = None
    DEFAULT_ADDR: ClassVar[str] = "localhost"
    DEFAULT_PORT: ClassVar[int] = 9443
    #: The types of the options.
    TYPES: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("addr", "path", "host"), str),
        "port": int,
        "context": ssl.SSLContext,
        "insecure": bool,
        "verify_mode": ssl.VerifyMode,
        "file_check_interval": int | float,
    }

    addr: str | None = None
    port: int | None = None
    path: str | None = None
    host: str | None = None
    cadata: bytes | str | None = None
    cafile: StrPath | None = None
    cadump: StrPath | None = None
    context: ssl.SSLContext | None = None
    insecure: bool = False
    certfile: StrPath | None = None
    pkeyfile: StrPath | None = None
    password: str | None = None
    extra_sans: Iterable[str] = ()
    verify_mode: ssl.VerifyMode | None = None
    verify_cafile: StrPath | None = None
    verify_capath: StrPath | None = None
    verify_cadata: str | bytes | None = None
    verify_subjects: Collection[str] | None = None
    file_check_interval: float = 60.0

    def __post_init__(self) -> None:
        self._listener: Listener | None = None
        self._contexts: LiveContext | None = None
        self._hosting = Hosting()
        self._expiry = ExpiryWatch(self._hosting)

    @staticmethod
    def build_certificate(
        hostnames: Collection[str], password: str | None = None
    ) -> tuple[bytes, bytes]:
        """Build a self-signed certificate for hostnames and IP addresses.

        The first hostname that is not an address becomes the common name; without one, the first
        address. The catch-all addresses (0.0.0.0, ::) are skipped.

        Args:
            hostnames: the alternative names.
            password: encrypts the private key.

        Returns:
            The certificate and its private key, both in PEM.
        """
        try:
            from webop.servers.certificates.certs import build_certificate_self_signed  # noqa: PLC0415 - slow
        except ImportError as error:
            raise ConfigurationError(
                f"Cannot make a self-signed certificate ({error}). Run `pip install cryptography`, "
                "or set certfile= and pkeyfile= to your own certificate, "
                "or use plain HTTP by insecure=True."
            ) from error
        pair = build_certificate_self_signed(hostnames, password)
        return pair.cert, pair.key

    async def watch_certificate(self) -> AsyncGenerator[bytes | None, None]:
        """Load a certificate; yield the CA bundle for the clients, and again when it changes.

        Call :meth:`use_certificate` before the first ``yield``, after which the listener starts,
        and again for each new certificate. The code after a ``yield`` runs when the operator has
        received the config; :meth:`wait_for_trust` waits until it is in the cluster. Return if
        nothing can change any more. The generator is closed with the server.

        Yields:
            The CA certificates in PEM; None for those that clients trust by default.
        """
        source, once = self.build_source(), Once()
        current = await self._load(source, None, once)
        while current is None:
            await asyncio.sleep((source.interval or 0.0) / 2)
            current = await self._load(source, None, once)
        await self._switch(current)
        self._hosting.is_settling = current.is_recent
        yield current.bundle
        if current.is_recent:
            await self._settle(source, current.bundle)
        self._hosting.is_settling = False
        async with contextlib.aclosing(self._follow(source, current, once)) as bundles:
            async for bundle in bundles:
                yield bundle

    async def _follow(
        self, source: CertificateSource, current: Material, once: Once
    ) -> AsyncGenerator[bytes | None, None]:
        """Follow the changes of a source; yield the CA bundle for the clients when it changes.

        Flow: announce the new CAs beside the old ones; wait until API servers can know them; use
        the new certificate; drop the old CAs after the overlap.

        Guarantees:
            - If API servers do not trust a new certificate yet, it is used only if the present one
              has expired.
            - No state is shared: each replica announces what it uses and what it is going to use.

        Caveats:
            If a replica cannot reach the API server for longer than the overlap, but the API server
            can reach it, it serves an untrusted certificate until it has access again.
        """
        advertised = current.bundle
        end_of_overlap = 0.0
        while source.interval is not None:
            await asyncio.sleep(source.interval)
            self._expiry.check()
            found = await self._load(source, current, once) or current
            if found != current:
                joined = join_bundles(current.bundle, found.bundle)
                if joined != advertised:
                    advertised = joined
                    yield advertised
                is_new = joined != current.bundle
                if is_new and not (await self._settle(source, joined) or self._expiry.has_expired):
                    continue
                try:
                    await self._switch(found)
                except (ConfigurationError, ssl.SSLError) as error:
                    if once.is_new("switch", str(error)):
                        text = "The changed certificate of the webhook server is not in use: %s"
                        logger.error(text, error)  # noqa: TRY400 - a traceback would not help
                    continue
                once.forget("switch")
                if (found.cert, found.key) != (current.cert, current.key):
                    text = "The changed certificate of the webhook server is in use: %s."
                    logger.info(text, self._expiry.description)
                current, end_of_overlap = found, time.monotonic() + source.overlap
            elif advertised != current.bundle and time.monotonic() >= end_of_overlap:
                advertised = current.bundle
                yield advertised

    def build_source(self) -> CertificateSource:
        """Return where the certificate comes from."""
        make = None
        if self._contexts is not None and not self._contexts.has_certificate:
            addr = get_reachable_address(self._get_addr())
            names = [self._get_host(), addr, *self.extra_sans]
            make = functools.partial(self.build_certificate, names, self.password)
        read = functools.partial(
            read_material,
            certfile=self.certfile,
            pkeyfile=self.pkeyfile,
            password=self.password,
            cafile=self.cafile,
            cadata=self.cadata,
        )
        is_fixed = self.certfile is None and self.cafile is None
        interval = None if is_fixed else self.file_check_interval
        return LocalSource(read=read, make=make, interval=interval)

    def build_config(self, port: int, bundle: bytes | None) -> WebhookClientConfig:
        """Build the config for the clients: the address of the server and its CA bundle.

        Args:
            port: the port of the listener.
            bundle: the CA certificates in PEM; None for the default ones.
        """
        config = self._build_place(port)
        if bundle is not None:
            config["caBundle"] = base64.b64encode(bundle).decode("ascii")
        return config

    async def use_certificate(
        self, cert: bytes, key: bytes | None = None, password: str | None = None
    ) -> None:
        """Show a certificate to new connections from now on, and note its expiry.

        Open connections stay as they are, unless the CAs of clients have changed meanwhile. A
        server with ``insecure=True`` ignores it.

        Args:
            cert: the certificate in PEM, with the intermediate ones after it.
            key: its private key in PEM; None if it is in the same text.
            password: decrypts the key.

        Raises:
            ConfigurationError: a test handshake presents another certificate.
            ssl.SSLError: this is not PEM, or the key does not belong to the certificate. The
                previous certificate stays in use.
        """
        if self._contexts is not None:
            if await self._contexts.use(cert, key, password):
                self._verify_again()
            self._expiry.note(cert)

    async def wait_for_trust(self, bundle: bytes) -> bool:
        """Wait until the cluster trusts these CA certificates (PEM), for at most a minute.

        Returns:
            Whether it does.
        """
        config = self.build_config(self._listener.port if self._listener else 0, bundle)
        try:
            # Not wait_for(): that of Python 3.11 can swallow a cancellation.
            async with asyncio.timeout(_TRUST_SECONDS):
                await self._hosting.confirm(config)
        except TimeoutError:
            text = "The webhook configurations do not have the new CA bundle after %g s."
            logger.warning(text, _TRUST_SECONDS)
            return False
        return True

    async def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve until cancelled (:meth:`BaseWebhookServer.serve`).

        Raises:
            ConfigurationError: the options are wrong, the port is in use.
            ValueError: both ``insecure`` and ``context`` are given.
        """
        from webop.servers.http.endpoint import ReviewEndpoint  # noqa: PLC0415 - slow
        from webop.servers.http.listener import Listener  # noqa: PLC0415 - slow

        self._check_options()
        hosting = self._hosting = get_hosting()
        await self._prepare()
        self._expiry = ExpiryWatch(hosting)
        # In a thread: reading from a networked disk can take long.
        self._contexts = await call_in_dedicated_thread(self._build_contexts)
        if self.verify_subjects is not None:
            fn = _restrict(fn, frozenset(self.verify_subjects))
        endpoint = ReviewEndpoint(fn, path=self.path, hosting=hosting)
        port = self.DEFAULT_PORT if self.port is None else self.port
        addr = self._get_addr()
        if not (self.addr is not None or self.host or addr == self.DEFAULT_ADDR):
            logger.warning(
                "The webhook server listens on all interfaces of this pod, but API servers will "
                "call %r. Set host= to the name of the Service, such as NAME.NAMESPACE.svc.",
                self._get_host(),
            )
        async with contextlib.aclosing(self.watch_certificate()) as bundles:
            bundle = await anext(bundles)
            await self._dump(bundle)
            async with Listener(
                endpoint, addr, port, ssl_context=self._contexts, hosting=hosting
            ) as listener:
                self._listener = listener
                watching = asyncio.create_task(self._watch_clients(), name="CAs of clients")
                try:
                    yield self.build_config(listener.port, bundle)
                    async for bundle in bundles:
                        with contextlib.suppress(ConfigurationError):  # it was fine at the start
                            await self._dump(bundle)
                        yield self.build_config(listener.port, bundle)
                    await asyncio.Event().wait()
                finally:
                    watching.cancel()

    async def _prepare(self) -> None:
        """Find out what subclasses need to know of the cluster."""

    def _build_place(self, port: int) -> WebhookClientConfig:
        scheme = "http" if self.insecure else "https"
        return WebhookClientConfig(url=build_url(scheme, self._get_host(), port, self.path))

    def _get_addr(self) -> str:
        if self.addr is not None:
            return self.addr
        return "" if self.host or is_in_pod() else self.DEFAULT_ADDR

    def _get_host(self) -> str:
        return self.host or self.DEFAULT_HOST or get_reachable_address(self._get_addr())

    def _check_options(self) -> None:
        for name, kind in self.TYPES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ConfigurationError(
                    f"{name}= of the webhook server must be of the type "
                    f"{getattr(kind, '__name__', kind)}, got {value!r}."
                )
        for name in ("extra_sans", "verify_subjects"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(
                    f"{name}= of the webhook server must be a list, got {getattr(self, name)!r}."
                )
        if self.host and not _HOST.fullmatch(self.host):
            raise ConfigurationError(
                f"host= of the webhook server must be a name or an address, got {self.host!r}. "
                "Set the port by port= and the path by path=; the scheme is always https."
            )

    def _build_contexts(self) -> LiveContext | None:
        """Return the TLS contexts, still without certificate; None for plain HTTP."""
        verification = (self.verify_cafile, self.verify_capath, self.verify_cadata)
        if self.verify_subjects is not None and not (
            self.verify_subjects and (self.context or any(verification))
        ):
            raise ConfigurationError(
                "verify_subjects= needs one name or more, and the CA certificates that verify "
                "clients: set verify_cafile=, verify_capath= or verify_cadata=."
            )
        if not self.insecure:
            if self.verify_mode == ssl.CERT_REQUIRED and not (self.context or any(verification)):
                raise ConfigurationError(
                    "verify_mode=CERT_REQUIRED needs CA certificates; without them, no client is "
                    "accepted. Set verify_cafile=, verify_capath= or verify_cadata=."
                )
            cafile, capath, cadata = verification
            return LiveContext(
                self.context, mode=self.verify_mode, cafile=cafile, capath=capath, cadata=cadata
            )
        if self.context is not None:
            raise _ContradictionError("insecure=True and context= exclude each other.")
        if self.verify_mode is not None or verification != (None, None, None):
            raise ConfigurationError(
                "insecure=True excludes verify_mode=, verify_cafile=, verify_capath= and "
                "verify_cadata=: plain HTTP has no client certificates, so anybody could send "
                "reviews. Remove insecure=True, or the others."
            )
        return None

    async def _watch_clients(self) -> None:
        contexts, once = self._contexts, Once()
        if contexts is None or (self.verify_cafile is None and self.verify_capath is None):
            return
        while True:
            try:
                if await contexts.reload_clients():
                    self._verify_again()
                once.forget("failure")
            except ConfigurationError as error:  # half-written: retry at the next check
                if once.is_new("failure", str(error)):
                    text = "The changed CA certificates of clients are not in use: %s"
                    logger.error(text, error)  # noqa: TRY400 - a traceback would not help
            await asyncio.sleep(self.file_check_interval)

    def _verify_again(self) -> None:
        """Let all clients connect again, as other CAs verify them now."""
        if self._listener is not None:
            self._listener.close_connections()
        logger.info("The changed CA certificates of clients are in use.")
        if self.context is not None:
            logger.warning("Restart the operator: context= does not forget old CAs.")

    async def _load(
        self, source: CertificateSource, current: Material | None, once: Once
    ) -> Material | None:
        """Load what the source has now; return None if that is not usable, and log why.

        Raises:
            ConfigurationError: it is not usable, and there is no certificate yet.
        """
        try:
            found = await source.load()
        except WebopError as exc:
            if current is None and isinstance(exc, ConfigurationError):
                raise
            if once.is_new("load", str(exc)):
                state = "Serving the last known one" if current else "Serving no webhooks yet"
                text = "Cannot load the certificate of the webhook server. %s; retrying: %s"
                logger.warning(text, state, exc)
            return None
        once.forget("load")
        return found

    async def _switch(self, material: Material) -> None:
        if material.cert is not None:
            await self.use_certificate(material.cert, material.key, self.password)

    async def _settle(self, source: CertificateSource, bundle: bytes | None) -> bool:
        """Wait until API servers can know a bundle; return whether the configurations have it."""
        is_confirmed = bundle is None or await self.wait_for_trust(bundle)
        await asyncio.sleep(source.settle)
        return is_confirmed

    async def _dump(self, bundle: bytes | None) -> None:
        if self.cadump is None:
            return
        if bundle is None:
            logger.warning("No CA certificates to write to cadump=%r.", str(self.cadump))
        else:
            await call_in_dedicated_thread(write_file, self.cadump, bundle, "cadump")


def _restrict(fn: WebhookFn, subjects: frozenset[str]) -> WebhookFn:

    async def review(
        request: Mapping[str, Any], *, sslpeer: SSLPeer | None = None, **options: Any
    ) -> dict[str, Any]:
        peer = sslpeer or {}
        names = {value for part in peer.get("subject", ()) for key, value in part if key == _CN}
        names |= {value for kind, value in peer.get("subjectAltName", ()) if kind == "DNS"}
        if names.isdisjoint(subjects):
            text = f"Reviews of {sorted(names)!r:.200} are not accepted (verify_subjects=)."
            raise ReviewError(text, status=403)
        return await fn(request, sslpeer=sslpeer, **options)

    return review


class WebhookK3dServer(WebhookServer):
    """A server for K3d/K3s clusters on this host, which call it ``host.k3d.internal``.

    Unlike the plain server, it listens on all interfaces by default, as the clusters connect from
    their own networks.
    """

    DEFAULT_HOST = "host.k3d.internal"
    DEFAULT_ADDR = ""


class WebhookMinikubeServer(WebhookServer):
    """A server for Minikube clusters on this host, which call it ``host.minikube.internal``.

    Unlike the plain server, it listens on all interfaces by default, as the clusters connect from
    their own networks.
    """

    DEFAULT_HOST = "host.minikube.internal"
    DEFAULT_ADDR = ""


class WebhookDockerDesktopServer(WebhookServer):
    """A server for Docker Desktop, which calls this host ``host.docker.internal``.

    That name leads to this host's loopback, too, where the plain server listens.
    """

    DEFAULT_HOST = "host.docker.internal"
