"""Webhook servers that listen on a port of this host: a plain one, and for local clusters.

They are named in users' handler files (``settings.admission.server = webop.WebhookServer()``),
so what makes them work (uvicorn, cryptography) is imported when they start.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import re
import ssl
from collections.abc import AsyncGenerator, Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from webop.backoff import Once
from webop.dedicated_threads import call_in_dedicated_thread
from webop.errors import ConfigurationError
from webop.servers.addresses import build_url, get_reachable_address
from webop.servers.base import BaseWebhookServer, WebhookClientConfig, WebhookFn
from webop.servers.certificates.certfiles import (
    ExpiryWatch,
    Material,
    add_bundle,
    join_bundles,
    read_material,
)
from webop.servers.certificates.contexts import LiveContext, StrPath, write_file
from webop.servers.hosting import Hosting, get_hosting

logger = logging.getLogger(__name__)

_TRUST_SECONDS = 60.0
_HOST = re.compile(r"[-\w.]+|[0-9A-Fa-f:.]+(%\w+)?")  # a name, or an IPv6 address


class _ContradictionError(ConfigurationError, ValueError):
    """Options that exclude each other; Kopf raises ValueError."""


@dataclass(kw_only=True, eq=False, repr=False)
class WebhookServer(BaseWebhookServer):
    """A local HTTPS (or HTTP) endpoint for reviews (manual, "Servers and tunnels").

    Called with the framework's function, it listens, yields the config for its clients, and
    serves until its generator is closed.

    Args:
        addr: the address to listen on; empty for all interfaces. By default, that is "localhost",
            or all interfaces in a pod and with a ``host``.
        port: the port to listen on; 9443 by default; 0 takes a free one.
        path: the root path of the URLs; none by default.
        host: the hostname in the URLs; by default, the address.
        cadata: the CA certificates (in PEM) for the clients to trust; not used by the server.
        cafile: the same in a file.
        cadump: a file to write the resulting CA bundle to, e.g. for ``curl --cacert``.
        context: a TLS context; whatever else is given here is loaded into it.
        insecure: serve plain HTTP; Kubernetes does not connect to that.
        certfile: the server's certificate; if there is none, a self-signed one is generated.
        pkeyfile: its private key; by default, it is in ``certfile``, too.
        password: what decrypts the key in the file, or encrypts the generated one.
        extra_sans: further names and addresses to put into the self-signed certificate.
        verify_mode: whether client certificates are asked for and required.
        verify_cafile: the CA certificates (in PEM) to verify those of clients.
        verify_capath: the same in a directory, as OpenSSL wants it.
        verify_cadata: the same as data.
        file_check_interval: how often, in seconds, the files are looked at for changes. Changed
            certificates are used for new connections, with no connection refused meanwhile.

    Flow: :meth:`watch_certificate` puts a certificate to use and yields the CA bundle for the
    clients; the listener starts; the config that :meth:`build_config` makes is yielded, and again
    each time the bundle changes. Subclasses that get their certificates, or are reached, in other
    ways override these two.
    """

    #: The hostname for the URLs if there is no ``host``; None takes the address.
    DEFAULT_HOST: ClassVar[str | None] = None
    DEFAULT_ADDR: ClassVar[str] = "localhost"
    DEFAULT_PORT: ClassVar[int] = 9443
    #: What the options must be, if they are given.
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
    file_check_interval: float = 60.0

    def __post_init__(self) -> None:
        super().__init__()
        self._listening_port = 0
        self._contexts: LiveContext | None = None
        self._hosting = Hosting()
        self._expiry = ExpiryWatch(self._hosting)

    @staticmethod
    def build_certificate(
        hostnames: Collection[str], password: str | None = None
    ) -> tuple[bytes, bytes]:
        """Build a self-signed certificate for some hostnames and IP addresses.

        The first hostname that is not an address becomes the common name, or else the first
        address. The catch-all addresses (0.0.0.0, ::) are left out.

        Args:
            hostnames: the alternative names.
            password: what encrypts the private key.

        Returns:
            The certificate and its private key, both in PEM.
        """
        try:
            from webop.servers.certificates.certs import build_certificate_self_signed  # noqa: PLC0415 - slow
        except ImportError as error:
            raise ConfigurationError(
                f"Self-signed certificates cannot be made ({error}): `pip install cryptography`; "
                "or give your own certificate by certfile= and pkeyfile=; "
                "or use plain HTTP by insecure=True."
            ) from error
        pair = build_certificate_self_signed(hostnames, password)
        return pair.cert, pair.key

    async def watch_certificate(self) -> AsyncGenerator[bytes | None, None]:
        """Put a certificate to use; yield the CA bundle for the clients, again when it changes.

        The listener starts after the first bundle: by then, :meth:`use_certificate` must have
        been called. It can be called again at any time. The code after a ``yield`` runs when the
        operator has taken the config; :meth:`wait_for_trust` waits until the clusters have
        followed. Return if nothing can change any more; the generator is closed when the server
        is.

        Yields:
            The CA certificates in PEM; None for those that clients trust by default.
        """
        current = await call_in_dedicated_thread(self._read_material)
        own = None
        if current.cert is not None:
            await self.use_certificate(current.cert, current.key, self.password)
        elif self._contexts is not None and not self._contexts.has_certificate:
            addr = get_reachable_address(self._get_addr())
            names = [self._get_host(), addr, *self.extra_sans]
            own, key = await call_in_dedicated_thread(self.build_certificate, names, self.password)
            await self.use_certificate(own, key, self.password)
        yield add_bundle(current.bundle, own)
        if self.certfile is not None or self.cafile is not None:
            async with contextlib.aclosing(self._watch_files(current, own)) as bundles:
                async for bundle in bundles:
                    yield bundle

    def build_config(self, port: int, bundle: bytes | None) -> WebhookClientConfig:
        """Build the config that tells the clients where the server is, and what to trust.

        Args:
            port: the port that it listens on.
            bundle: the CA certificates in PEM; None for the default ones.
        """
        scheme = "http" if self.insecure else "https"
        config = WebhookClientConfig(url=build_url(scheme, self._get_host(), port, self.path))
        if bundle is not None:
            config["caBundle"] = base64.b64encode(bundle).decode("ascii")
        return config

    async def use_certificate(
        self, cert: bytes, key: bytes | None = None, password: str | None = None
    ) -> None:
        """Show a certificate to new connections from now on, and note its expiry.

        Open connections stay as they are. A server with ``insecure=True`` ignores it.

        Args:
            cert: the certificate in PEM, with the intermediate ones after it.
            key: its private key in PEM; None if it is in the same text.
            password: what decrypts the key.

        Raises:
            ConfigurationError: a handshake has shown another certificate.
            ssl.SSLError: this is not PEM, or they do not fit. Nothing has changed then.
        """
        if self._contexts is not None:
            await self._contexts.use(cert, key, password)
            self._expiry.note(cert)

    async def wait_for_trust(self, bundle: bytes) -> None:
        """Wait until the clusters trust these CA certificates (PEM), for a minute at most."""
        config = self.build_config(self._listening_port, bundle)
        try:
            # Not wait_for(): that of Python 3.11 can swallow a cancellation.
            async with asyncio.timeout(_TRUST_SECONDS):
                await self._hosting.confirm(config)
        except TimeoutError:
            logger.warning("The new CA bundle is not confirmed after %s s.", _TRUST_SECONDS)

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
        self._expiry = ExpiryWatch(hosting)
        # Files are read in a thread: those of networked disks can take long.
        self._contexts = await call_in_dedicated_thread(self._build_contexts)
        endpoint = ReviewEndpoint(fn, path=self.path, hosting=hosting)
        port = self.DEFAULT_PORT if self.port is None else self.port
        addr = self._get_addr()
        if not (self.addr is not None or self.host or addr == self.DEFAULT_ADDR):
            logger.warning(
                "Webhooks are served on all interfaces, as this is a pod, but API servers are told "
                "to call %r: set host= to the name of the Service, such as NAME.NAMESPACE.svc.",
                self._get_host(),
            )
        async with contextlib.aclosing(self.watch_certificate()) as bundles:
            bundle = await anext(bundles)
            await self._dump(bundle)
            async with Listener(
                endpoint, addr, port, ssl_context=self._contexts, hosting=hosting
            ) as listener:
                self._listening_port = listener.port
                yield self.build_config(listener.port, bundle)
                async for bundle in bundles:
                    with contextlib.suppress(ConfigurationError):  # it was fine at the start
                        await self._dump(bundle)
                    yield self.build_config(listener.port, bundle)
                await asyncio.Event().wait()

    def _get_addr(self) -> str:
        if self.addr is not None:
            return self.addr
        is_in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        return "" if self.host or is_in_pod else self.DEFAULT_ADDR

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
        if isinstance(self.extra_sans, str):
            raise ConfigurationError(
                f"extra_sans= of the webhook server must be a list, got {self.extra_sans!r}."
            )
        if self.host and not _HOST.fullmatch(self.host):
            raise ConfigurationError(
                f"host= of the webhook server must be a name or an address, got {self.host!r}: "
                "the port goes to port=, the path to path=, the scheme is always https."
            )

    def _build_contexts(self) -> LiveContext | None:
        """Return the TLS contexts, with no certificate yet; None for plain HTTP."""
        verification = (self.verify_cafile, self.verify_capath, self.verify_cadata)
        if not self.insecure:
            if self.verify_mode == ssl.CERT_REQUIRED and not (self.context or any(verification)):
                raise ConfigurationError(
                    "verify_mode=CERT_REQUIRED needs the CA certificates of the clients, or no "
                    "client is accepted: give verify_cafile=, verify_capath= or verify_cadata=."
                )
            cafile, capath, cadata = verification
            return LiveContext(
                self.context, mode=self.verify_mode, cafile=cafile, capath=capath, cadata=cadata
            )
        if self.context is not None:
            raise _ContradictionError("There cannot be both insecure=True and a TLS context=.")
        if self.verify_mode is not None or verification != (None, None, None):
            raise ConfigurationError(
                "There cannot be both insecure=True and verify_mode=, verify_cafile=, "
                "verify_capath=, or verify_cadata=: plain HTTP has no client certificates to "
                "verify, so anybody could send reviews. Remove insecure=True, or the others."
            )
        return None

    def _read_material(self) -> Material:
        return read_material(
            certfile=self.certfile,
            pkeyfile=self.pkeyfile,
            password=self.password,
            cafile=self.cafile,
            cadata=self.cadata,
        )

    async def _watch_files(
        self, current: Material, own: bytes | None
    ) -> AsyncGenerator[bytes | None, None]:
        """Follow the files; yield the CA bundle when it changes.

        The new CA certificates are trusted beside the old ones before the new certificate is
        used, and the old ones until the look after that: other replicas may see the files later.
        """
        bundle = told = add_bundle(current.bundle, own)
        once = Once()
        while True:
            await asyncio.sleep(self.file_check_interval)
            self._expiry.check()
            changed = await self._read_again(current)
            previous, bundle = bundle, add_bundle(changed.bundle, own)
            is_same = (changed.cert, changed.key) == (current.cert, current.key)
            if bundle != previous:
                told = join_bundles(told, bundle)
                yield told
                await self.wait_for_trust(told)
            elif told != bundle and is_same:
                told = bundle
                yield told
            if changed.cert is not None and not is_same and self._contexts is not None:
                try:
                    await self.use_certificate(changed.cert, changed.key, self.password)
                except (ConfigurationError, ssl.SSLError) as error:
                    changed = current  # to be tried again: other files may be half-written
                    if once.is_new("failure", str(error)):
                        text = "The changed certificate of the webhook server is not in use: %s"
                        logger.error(text, error)  # noqa: TRY400 - it is no fault of the code
                else:
                    once.forget("failure")
                    text = "The changed certificate of the webhook server is in use: %s."
                    logger.info(text, self._expiry.description)
            current = changed

    async def _read_again(self, current: Material) -> Material:
        """Read the files; keep what is known if they are not usable, as when half-written."""
        try:
            return await call_in_dedicated_thread(self._read_material)
        except ConfigurationError as error:
            logger.warning("The changed files of the webhook server are left out: %s", error)
            return current

    async def _dump(self, bundle: bytes | None) -> None:
        if self.cadump is None:
            return
        if bundle is None:
            logger.warning("There are no CA certificates to write to cadump=%r.", str(self.cadump))
        else:
            await call_in_dedicated_thread(write_file, self.cadump, bundle, "cadump")


class WebhookK3dServer(WebhookServer):
    """A server for K3d/K3s clusters on this host, which know it as ``host.k3d.internal``.

    Unlike the plain server, it listens on all interfaces by default: the clusters come from
    their own networks, not from the loopback.
    """

    DEFAULT_HOST = "host.k3d.internal"
    DEFAULT_ADDR = ""


class WebhookMinikubeServer(WebhookServer):
    """A server for Minikube clusters on this host, which know it as ``host.minikube.internal``.

    Unlike the plain server, it listens on all interfaces by default: the clusters come from
    their own networks, not from the loopback.
    """

    DEFAULT_HOST = "host.minikube.internal"
    DEFAULT_ADDR = ""


class WebhookDockerDesktopServer(WebhookServer):
    """A server for the cluster of Docker Desktop: this host is its ``host.docker.internal``.

    Docker Desktop leads that name to this host's loopback, too, where the plain server listens.
    """

    DEFAULT_HOST = "host.docker.internal"
