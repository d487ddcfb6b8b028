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
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
from typing import TYPE_CHECKING, Any

from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.own_threads import call_in_own_thread
from webop.servers.addresses import build_url, get_reachable_address
from webop.servers.base import WebhookClientConfig, WebhookFn
from webop.servers.certificates import contexts
from webop.servers.certificates.certfiles import (
    ExpiryWatch,
    Material,
    add_bundle,
    join_bundles,
    read_material,
)
from webop.servers.hosting import Hosting, get_hosting
from webop.servers.lifetime import ClosableServer

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger(__name__)

_TRUST_SECONDS = 60.0


class WebhookServer(ClosableServer):
    """A local HTTPS (or HTTP) endpoint for reviews (manual, "Servers and tunnels").

    It is used once: called with the framework's function, it listens, yields the config for its
    clients, and serves until its generator is closed. As an async context manager, it closes
    the generators that it has given, on exit.

    Args:
        addr: the address to listen on; empty for all interfaces. By default, that is "localhost",
            or all interfaces in a pod and with a ``host``.
        port: the port to listen on; 9443 by default; 0 takes a free one.
        path: the root path of the URLs; none by default.
        host: the hostname in the URLs; by default, the address.
        cadata: the authorities (in PEM) for the clients to trust; not used by the server itself.
        cafile: the same in a file.
        cadump: a file to save the resulting authorities to, e.g. for ``curl --cacert``.
        context: a TLS context; whatever else is given here is loaded into it.
        insecure: serve plain HTTP; Kubernetes does not connect to that.
        certfile: the server's certificate; if there is none, a self-signed one is generated.
        pkeyfile: its private key; by default, it is in ``certfile``, too.
        password: what decrypts the key in the file, or encrypts the generated one.
        extra_sans: further names and addresses to put into the self-signed certificate.
        verify_mode: whether client certificates are asked for and required.
        verify_cafile: the authorities (in PEM) to verify client certificates.
        verify_capath: the same in a directory, as OpenSSL wants it.
        verify_cadata: the same as data.
        file_check_interval: how often, in seconds, the files are looked at for changes. Changed
            certificates are used for new connections, with no connection refused meanwhile.

    Flow: the TLS context is made; :meth:`_watch_certificate` loads a certificate into it and
    yields the authorities for the clients to trust; the listener starts; the config that
    :meth:`_build_config` makes is yielded, and again each time the authorities change. These two
    methods are for the subclasses that get their certificates, or are reached, in other ways.
    """

    #: The hostname for the URLs if there is no ``host``; None takes the address.
    DEFAULT_HOST: str | None = None
    DEFAULT_ADDR: str = "localhost"
    DEFAULT_PORT: int = 9443

    def __init__(  # noqa: PLR0913 - the signature is the manual's
        self,
        *,
        addr: str | None = None,
        port: int | None = None,
        path: str | None = None,
        host: str | None = None,
        cadata: bytes | None = None,
        cafile: str | os.PathLike[str] | None = None,
        cadump: str | os.PathLike[str] | None = None,
        context: ssl.SSLContext | None = None,
        insecure: bool = False,
        certfile: str | os.PathLike[str] | None = None,
        pkeyfile: str | os.PathLike[str] | None = None,
        password: str | None = None,
        extra_sans: Iterable[str] = (),
        verify_mode: ssl.VerifyMode | None = None,
        verify_cafile: str | os.PathLike[str] | None = None,
        verify_capath: str | os.PathLike[str] | None = None,
        verify_cadata: str | bytes | None = None,
        file_check_interval: float = 60.0,
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path
        self.host = host
        self.cadata = cadata
        self.cafile = cafile
        self.cadump = cadump
        self.context = context
        self.insecure = insecure
        self.certfile = certfile
        self.pkeyfile = pkeyfile
        self.password = password
        self.extra_sans = extra_sans
        self.verify_mode = verify_mode
        self.verify_cafile = verify_cafile
        self.verify_capath = verify_capath
        self.verify_cadata = verify_cadata
        self.file_check_interval = file_check_interval
        self._listening_port = 0
        self._hosting = Hosting()
        self._expiry = ExpiryWatch(self._hosting)

    def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        """Serve reviews by a function until the returned generator is closed.

        Raises:
            ConfigurationError: (on the first step) the options are wrong, the port is in use.
            ValueError: (on the first step) both ``insecure`` and ``context`` are given.
        """
        self._hosting = get_hosting()
        self._expiry = ExpiryWatch(self._hosting)
        return super().__call__(fn)

    @staticmethod
    def build_certificate(
        hostnames: Collection[str],
        password: str | None = None,
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

    async def _watch_certificate(
        self, context: ssl.SSLContext | None
    ) -> AsyncGenerator[bytes | None, None]:
        """Load a certificate into the TLS context; tell the authorities, now and on each change.

        The first authorities are awaited before the listener starts: the certificate must be in
        the context by then. Later, it may change the certificate of the live context at any
        moment (:meth:`_use_certificate`), and yields the authorities whenever they change. It
        goes on after a ``yield`` when the operator has taken the config; when the clusters trust
        the new authorities, too, is told by :meth:`_wait_for_trust`. It may wait for as long as
        it wants, or return if nothing can change; it is closed when the server is.

        Args:
            context: the TLS context of the listener; None for plain HTTP.

        Yields:
            The authorities for the clients to trust, in PEM; None for the default ones.
        """
        current = await call_in_own_thread(self._read_material)
        own = await call_in_own_thread(self._make_certificate, context, current)
        if context is not None and current.cert is not None:
            self._use_certificate(context, current.cert, current.key, self.password)
        yield add_bundle(current.bundle, own)
        if self.certfile is not None or self.cafile is not None:
            async with contextlib.aclosing(self._watch_files(context, current, own)) as bundles:
                async for bundle in bundles:
                    yield bundle

    def _build_config(self, port: int, bundle: bytes | None) -> WebhookClientConfig:
        """Build the config that tells the clients where the server is, and what to trust.

        Args:
            port: the port that it listens on.
            bundle: the authorities in PEM; None for the default ones.
        """
        scheme = "http" if self.insecure else "https"
        config = WebhookClientConfig(url=build_url(scheme, self._get_host(), port, self.path))
        if bundle is not None:
            config["caBundle"] = base64.b64encode(bundle).decode("ascii")
        return config

    def _use_certificate(
        self,
        context: ssl.SSLContext,
        cert: bytes,
        key: bytes | None = None,
        password: str | None = None,
    ) -> None:
        """Put a certificate into a TLS context, live or not, and tell the operator its expiry.

        New connections are served with it, those that are open stay as they are. To be called
        in the event loop, not in a thread: no handshake may see one half of it.

        Args:
            context: the TLS context of the listener.
            cert: the certificate in PEM, with the intermediate ones after it.
            key: its private key in PEM; None if it is in the same text.
            password: what decrypts the key.

        Raises:
            ssl.SSLError: this is not PEM, or they do not fit. The context is spoilt then: what
                is not known to fit must be tried out in another context.
        """
        load_key_material(context, cert, key, password)
        self._expiry.note(cert)

    async def _wait_for_trust(self, bundle: bytes) -> None:
        """Wait until the clusters trust these authorities (PEM); not for ever: a minute."""
        config = self._build_config(self._listening_port, bundle)
        try:
            # Not wait_for(): that of Python 3.11 can swallow a cancellation.
            async with asyncio.timeout(_TRUST_SECONDS):
                await self._hosting.confirm(config)
        except TimeoutError:
            logger.warning("The new authorities are not confirmed after %s s.", _TRUST_SECONDS)

    async def _serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        from webop.servers.http.endpoint import ReviewEndpoint  # noqa: PLC0415 - slow
        from webop.servers.http.listener import Listener  # noqa: PLC0415 - slow

        hosting = self._hosting
        # Files are read in a thread: those of networked disks can take long.
        context = await call_in_own_thread(self._build_context)
        endpoint = ReviewEndpoint(fn, path=self.path, hosting=hosting)
        port = self.DEFAULT_PORT if self.port is None else self.port
        addr = self._get_addr()
        if not (self.addr is not None or self.host or addr == self.DEFAULT_ADDR):
            logger.warning(
                "Webhooks are served on all interfaces, as this is a pod, but API servers are told "
                "to call %r: set host= to the name of the Service, such as NAME.NAMESPACE.svc.",
                self._get_host(),
            )
        async with contextlib.aclosing(self._watch_certificate(context)) as bundles:
            bundle = await anext(bundles)
            await self._dump(bundle)
            async with Listener(
                endpoint, addr, port, ssl_context=context, hosting=hosting
            ) as listener:
                self._listening_port = listener.port
                yield self._build_config(listener.port, bundle)
                while await self._has_another(pending := asyncio.ensure_future(anext(bundles))):
                    bundle = pending.result()
                    with contextlib.suppress(ConfigurationError):  # it was fine at the start
                        await self._dump(bundle)
                    yield self._build_config(listener.port, bundle)

    async def _has_another(self, step: asyncio.Future[Any]) -> bool:
        """Wait for the next authorities; False if the server is closed first."""
        closing: asyncio.Future[Any] = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((step, closing), return_when=asyncio.FIRST_COMPLETED)
            if step.done() and isinstance(step.exception(), StopAsyncIteration):
                await closing
            return not closing.done()
        finally:
            for future in (step, closing):
                future.cancel()
            await asyncio.gather(step, closing, return_exceptions=True)

    def _get_addr(self) -> str:
        if self.addr is not None:
            return self.addr
        is_in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        return "" if self.host or is_in_pod else self.DEFAULT_ADDR

    def _get_host(self) -> str:
        return self.host or self.DEFAULT_HOST or get_reachable_address(self._get_addr())

    def _build_context(self) -> ssl.SSLContext | None:
        """Return the TLS context without a certificate yet; None for plain HTTP."""
        if self.insecure:
            if self.context is not None:
                raise ValueError("There cannot be both insecure=True and a TLS context=.")
            return None
        context = self.context or contexts.build_server_context()
        contexts.load_verification(
            context,
            mode=self.verify_mode,
            cafile=self.verify_cafile,
            capath=self.verify_capath,
            cadata=self.verify_cadata,
        )
        return context

    def _read_material(self) -> Material:
        return read_material(
            certfile=self.certfile,
            pkeyfile=self.pkeyfile,
            password=self.password,
            cafile=self.cafile,
            cadata=self.cadata,
        )

    def _make_certificate(self, context: ssl.SSLContext | None, material: Material) -> bytes | None:
        """Load a self-signed certificate if there is no other; return it, or None."""
        if context is None or material.cert is not None:
            return None
        if self.context is not None and contexts.has_certificate(context):
            return None
        addr = get_reachable_address(self._get_addr())
        hostnames = [self._get_host(), addr, *self.extra_sans]
        cert, key = self.build_certificate(hostnames, self.password)
        self._use_certificate(context, cert, key, self.password)
        return cert

    async def _watch_files(
        self, context: ssl.SSLContext | None, current: Material, own: bytes | None
    ) -> AsyncGenerator[bytes | None, None]:
        """Follow the files; yield the authorities to trust when they change.

        The new authorities are trusted beside the old ones before the new certificate is used,
        and the old ones until the next look at the files: other replicas may see them later.
        """
        bundle = told = add_bundle(current.bundle, own)
        while True:
            await asyncio.sleep(self.file_check_interval)
            self._expiry.check()
            changed = await self._read_again(current)
            previous, bundle = bundle, add_bundle(changed.bundle, own)
            if bundle != previous:
                told = join_bundles(previous, bundle)
                yield told
                await self._wait_for_trust(told)
            elif told != bundle:
                told = bundle
                yield told
            is_same = (changed.cert, changed.key) == (current.cert, current.key)
            if context is not None and changed.cert is not None and not is_same:
                self._use_certificate(context, changed.cert, changed.key, self.password)
                logger.info("The changed certificate of the webhook server is in use.")
            current = changed

    async def _read_again(self, current: Material) -> Material:
        """Read the files; keep what is known if they are not usable, as when half-written."""
        try:
            return await call_in_own_thread(self._read_material)
        except ConfigurationError as error:
            logger.warning("The changed files of the webhook server are left out: %s", error)
            return current

    async def _dump(self, bundle: bytes | None) -> None:
        if self.cadump is None:
            return
        if bundle is None:
            logger.warning("There are no authorities to save to cadump=%r.", str(self.cadump))
        else:
            await call_in_own_thread(contexts.write_file, self.cadump, bundle, "cadump")


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
