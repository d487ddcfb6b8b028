"""Webhook servers that listen on a port of this host: a plain one, and for local clusters.

They are named in users' handler files (``settings.admission.server = webop.WebhookServer()``),
so what makes them work (uvicorn, cryptography) is imported when they start.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import quote

from webop.errors import ConfigurationError
from webop.keymaterial import load_key_material
from webop.servers import contexts
from webop.servers.base import WebhookClientConfig, WebhookFn

if TYPE_CHECKING:
    import os
    import ssl
    from types import TracebackType

logger = logging.getLogger(__name__)

_DEFAULT_PORTS = {"http": 80, "https": 443}


class WebhookServer:
    """A local HTTPS (or HTTP) endpoint for reviews (manual, "Servers and tunnels").

    It is used once: called with the framework's function, it listens, yields the config for its
    clients, and serves until its generator is closed. As an async context manager, it closes
    the generators that it has given, on exit.

    Args:
        addr: the address to listen on; "localhost" by default; empty for all interfaces.
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
    """

    #: The hostname for the URLs if there is no ``host``; None takes the address.
    DEFAULT_HOST: ClassVar[str | None] = None
    DEFAULT_ADDR: ClassVar[str] = "localhost"
    DEFAULT_PORT: ClassVar[int] = 9443

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
    ) -> None:
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
        self._closing = asyncio.Event()
        # Not kept alive: a generator that nobody iterates any more is closed by the event loop.
        self._generators: weakref.WeakSet[AsyncGenerator[WebhookClientConfig, None]]
        self._generators = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        self._closing.clear()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        for generator in list(self._generators):
            # Those that are being iterated by other tasks end by themselves now.
            with contextlib.suppress(RuntimeError):
                await generator.aclose()

    def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        """Serve reviews by a function until the returned generator is closed.

        Raises:
            ConfigurationError: (on the first step) the options are wrong, the port is in use.
            ValueError: (on the first step) both ``insecure`` and ``context`` are given.
        """
        generator = self._serve(fn)
        self._generators.add(generator)
        return generator

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
            from webop.servers.certs import build_certificate_self_signed  # noqa: PLC0415 - slow
        except ImportError as error:
            raise ConfigurationError(
                f"Self-signed certificates cannot be made ({error}): `pip install cryptography`; "
                "or give your own certificate by certfile= and pkeyfile=; "
                "or use plain HTTP by insecure=True."
            ) from error
        pair = build_certificate_self_signed(hostnames, password)
        return pair.cert, pair.key

    async def _serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        from webop.servers.endpoint import ReviewEndpoint  # noqa: PLC0415 - slow
        from webop.servers.listener import Listener  # noqa: PLC0415 - slow

        # Files are read in a thread: those of networked disks can take long.
        context, cadata = await asyncio.to_thread(self._build_tls)
        endpoint = ReviewEndpoint(fn, path=self.path)
        port = self.DEFAULT_PORT if self.port is None else self.port
        async with Listener(endpoint, self._get_addr(), port, ssl_context=context) as listener:
            scheme = "http" if context is None else "https"
            url = build_url(scheme, self._get_host(), listener.port, self.path)
            logger.debug("Serving webhooks at %s", url)
            config = WebhookClientConfig(url=url)
            if cadata is not None:
                config["caBundle"] = base64.b64encode(cadata).decode("ascii")
            yield config
            await self._closing.wait()

    def _get_addr(self) -> str:
        return self.DEFAULT_ADDR if self.addr is None else self.addr

    def _get_host(self) -> str:
        return self.host or self.DEFAULT_HOST or get_reachable_address(self._get_addr())

    def _build_tls(self) -> tuple[ssl.SSLContext | None, bytes | None]:
        """Return the TLS context, if any, and the authorities for the clients to trust, if any."""
        if self.insecure and self.context is not None:
            raise ValueError("There cannot be both insecure=True and a TLS context=.")
        cadata = self.cadata
        if cadata is None and self.cafile is not None:
            cadata = contexts.read_file(self.cafile, "cafile")
        context = None
        if not self.insecure:
            context = self.context or contexts.build_server_context()
            self._load_verification(context)
            cadata = self._load_certificate(context, cadata)
        if self.cadump is not None:
            self._dump(cadata)
        return context, cadata

    def _load_verification(self, context: ssl.SSLContext) -> None:
        contexts.load_verification(
            context,
            mode=self.verify_mode,
            cafile=self.verify_cafile,
            capath=self.verify_capath,
            cadata=self.verify_cadata,
        )

    def _load_certificate(self, context: ssl.SSLContext, cadata: bytes | None) -> bytes | None:
        """Load the given or a new certificate; return the authorities for the clients to trust."""
        if self.certfile is not None:
            cert = contexts.load_certificate_files(
                context, self.certfile, self.pkeyfile, self.password
            )
            return cert if cadata is None else cadata
        if self.pkeyfile is not None:
            raise ConfigurationError("pkeyfile= needs certfile=: the certificate of that key.")
        if self.context is not None and contexts.has_certificate(context):
            return cadata
        addr = get_reachable_address(self._get_addr())
        hostnames = [self._get_host(), addr, *self.extra_sans]
        cert, key = self.build_certificate(hostnames, self.password)
        load_key_material(context, cert, key, self.password)
        # The clients must trust the new certificate, whatever else they are told to trust.
        return cert if cadata is None else cadata.rstrip() + b"\n" + cert

    def _dump(self, cadata: bytes | None) -> None:
        assert self.cadump is not None  # noqa: S101 - for the type checker
        if cadata is None:
            logger.warning("There are no authorities to save to cadump=%r.", str(self.cadump))
        else:
            contexts.write_file(self.cadump, cadata, "cadump")


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


def get_reachable_address(addr: str) -> str:
    """Return where to connect to for a server that listens on an address.

    One can listen on the catch-all addresses, but not connect to them.
    """
    if not addr:
        return "localhost"
    try:
        ip = ipaddress.ip_address(addr)
    except ValueError:
        return addr
    if not ip.is_unspecified:
        return addr
    return "127.0.0.1" if ip.version == 4 else "::1"


def build_url(scheme: str, host: str, port: int, path: str | None) -> str:
    """Build the URL of a server, in the shortest form."""
    netloc = f"[{host}]" if ":" in host else host
    if port != _DEFAULT_PORTS[scheme]:
        netloc = f"{netloc}:{port}"
    stripped = quote((path or "").strip("/"))
    return f"{scheme}://{netloc}/{stripped}" if stripped else f"{scheme}://{netloc}"
