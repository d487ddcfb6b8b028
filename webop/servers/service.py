"""A webhook server for operators in a cluster: behind a Service, with certificates of its own.

It is named in users' handler files, so what is slow to import is imported when it starts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import logging
import os
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

from webop.errors import (
    APIConnectionError,
    APIError,
    APIServerError,
    ConfigurationError,
    LoginError,
)
from webop.servers.base import WebhookClientConfig, WebhookClientConfigService
from webop.servers.certificates.certfiles import join_bundles, read_material
from webop.servers.local import WebhookServer

if TYPE_CHECKING:
    import ssl

    from webop.servers.certificates.rotation import Leaf
    from webop.servers.certificates.sharing import Sharing

logger = logging.getLogger(__name__)

_SERVICE_VARIABLE = "WEBOP_SERVICE"


class WebhookServiceServer(WebhookServer):
    """A server on all interfaces of a pod, which API servers reach by a Service.

    Without ``certfile``, it makes its certificate, and shares it with all replicas of the operator
    by a Secret. The certificate is renewed after two thirds of its life, or when the Secret is
    deleted or its annotation ``webop.dev/rotate`` gets another value. No request fails then: what
    signs the new certificate is trusted by the API servers before the certificate is used, and
    for long after that the same goes for the old one. A Secret that somebody else keeps (such as
    cert-manager) is followed in the same way, and never written.

    The operator needs the verbs get and update for the Secret, and create for secrets in its
    namespace.

    Args:
        service: the name of the Service; by default, it is in the variable WEBOP_SERVICE.
        namespace: of the Service and the Secret; by default, that of the operator.
        service_port: the port of the Service.
        port: the port to listen on.
        path: the root path of the URLs, made of DNS names; none by default.
        addr: the address to listen on; all interfaces by default.
        certfile: the certificate of the server, for ``<service>.<namespace>.svc``. The files are
            watched for changes; there is no Secret then.
        pkeyfile: its private key; by default, it is in ``certfile``, too.
        password: what decrypts the key in the file.
        cafile: further authorities (in PEM) for the API servers to trust; with ``certfile``, all.
        cadata: the same as data.
        cadump: a file to save the resulting authorities to.
        secret: the name of the Secret; ``<service>-webhook-certs`` by default.
        certificate_lifetime: how long the certificates are valid that are made here.
        poll_interval: seconds between looks at the Secret.
        settle_time: seconds that API servers may take to go by an applied configuration.
        overlap: seconds for which old authorities are trusted, at least, after their last use.
        extra_sans: further names and addresses for the certificate.
        verify_mode: whether client certificates are asked for and required.
        verify_cafile: the authorities (in PEM) to verify client certificates.
        verify_capath: the same in a directory, as OpenSSL wants it.
        verify_cadata: the same as data.
        file_check_interval: how often, in seconds, the files are looked at for changes.
    """

    DEFAULT_ADDR = ""

    def __init__(  # noqa: PLR0913 - as of WebhookServer
        self,
        *,
        service: str | None = None,
        namespace: str | None = None,
        service_port: int = 443,
        port: int | None = None,
        path: str | None = None,
        addr: str | None = None,
        certfile: str | os.PathLike[str] | None = None,
        pkeyfile: str | os.PathLike[str] | None = None,
        password: str | None = None,
        cafile: str | os.PathLike[str] | None = None,
        cadata: bytes | None = None,
        cadump: str | os.PathLike[str] | None = None,
        secret: str | None = None,
        # As of cert-manager: renewed six times a year, so nobody forgets how; and a month is
        # left then for those who repair what prevents it.
        certificate_lifetime: dt.timedelta = dt.timedelta(days=90),
        poll_interval: float = 5.0,
        settle_time: float = 15.0,
        overlap: float = 600.0,
        extra_sans: Iterable[str] = (),
        verify_mode: ssl.VerifyMode | None = None,
        verify_cafile: str | os.PathLike[str] | None = None,
        verify_capath: str | os.PathLike[str] | None = None,
        verify_cadata: str | bytes | None = None,
        file_check_interval: float = 60.0,
    ) -> None:
        super().__init__(
            addr=addr,
            port=port,
            path=path,
            cadata=cadata,
            cafile=cafile,
            cadump=cadump,
            certfile=certfile,
            pkeyfile=pkeyfile,
            password=password,
            extra_sans=tuple(extra_sans),
            verify_mode=verify_mode,
            verify_cafile=verify_cafile,
            verify_capath=verify_capath,
            verify_cadata=verify_cadata,
            file_check_interval=file_check_interval,
        )
        self.service = service
        self.namespace = namespace
        self.service_port = service_port
        self.secret = secret
        self.certificate_lifetime = certificate_lifetime
        self.poll_interval = poll_interval
        self.settle_time = settle_time
        self.overlap = overlap

    async def _watch_certificate(
        self, context: ssl.SSLContext | None
    ) -> AsyncGenerator[bytes | None, None]:
        await self._wait_for_namespace()
        self._build_service()  # an absent name is reported before anything else is done
        assert context is not None  # noqa: S101  there is no insecure=
        if self.certfile is not None or self.pkeyfile is not None:
            bundles = super()._watch_certificate(context)
        else:
            bundles = self._watch_secret(context)
        async with contextlib.aclosing(bundles):
            async for bundle in bundles:
                yield bundle

    async def _watch_secret(self, context: ssl.SSLContext) -> AsyncGenerator[bytes | None, None]:
        from webop.servers.certificates.sharing import SharedCertificate  # noqa: PLC0415 - slow

        cluster = self._hosting.cluster
        if cluster is None:
            raise ConfigurationError(
                "WebhookServiceServer keeps its certificates in a Secret, but there is no cluster. "
                "Run it in an operator with access to one; or give certfile= and pkeyfile=."
            )
        extra = read_material(cafile=self.cafile, cadata=self.cadata).bundle

        def load(leaf: Leaf) -> None:
            self._use_certificate(context, leaf.cert, leaf.key)

        async def confirm(bundle: bytes) -> None:
            joined = join_bundles(bundle, extra)
            await self._hosting.confirm(self._build_config(self._listening_port, joined))

        sharing = self._build_sharing()
        self._hosting.secret = (sharing.namespace, sharing.secret)
        shared = SharedCertificate(
            cluster,
            sharing,
            load=load,
            confirm=confirm,
            check=self._expiry.check,
        )
        async with contextlib.aclosing(shared.follow()) as bundles:
            async for bundle in bundles:
                yield join_bundles(bundle, extra)

    def _build_config(self, port: int, bundle: bytes | None) -> WebhookClientConfig:  # noqa: ARG002
        config = WebhookClientConfig(service=self._build_service())
        if bundle is not None:
            config["caBundle"] = base64.b64encode(bundle).decode("ascii")
        return config

    def _build_service(self) -> WebhookClientConfigService:
        service, namespace = self._get_names()
        reference = WebhookClientConfigService(
            namespace=namespace, name=service, port=self.service_port
        )
        if path := (self.path or "").strip("/"):
            reference["path"] = f"/{path}"
        return reference

    def _get_names(self) -> tuple[str, str]:
        """Return the name of the Service, and its namespace."""
        cluster = self._hosting.cluster
        service = self.service or os.environ.get(_SERVICE_VARIABLE)
        namespace = self.namespace or (cluster and cluster.namespace)
        if not service:
            raise ConfigurationError(
                "WebhookServiceServer does not know its Service: give its name by service=, "
                f"or by the environment variable {_SERVICE_VARIABLE}."
            )
        if not namespace:
            raise ConfigurationError(
                f"The namespace of the Service {service!r} is not known: give it by namespace=."
            )
        return service, namespace

    async def _wait_for_namespace(self) -> None:
        """Wait for the login, if need be: the namespace of the operator comes with it."""
        cluster = self._hosting.cluster
        if self.namespace or cluster is None:
            return
        while not cluster.namespace:
            try:
                await cluster.request("GET", "/version")
            except (APIConnectionError, APIServerError, LoginError) as exc:
                logger.warning("The namespace of the operator is not known yet: %s", exc)
                await asyncio.sleep(self.poll_interval)
            except APIError:
                return  # there has been a login
            else:
                return

    def _build_sharing(self) -> Sharing:
        from webop.servers.certificates.rotation import Pace  # noqa: PLC0415 - only if it is used
        from webop.servers.certificates.sharing import Sharing  # noqa: PLC0415 - slow

        service, namespace = self._get_names()
        pace = Pace(poll=self.poll_interval, settle=self.settle_time, overlap=self.overlap)
        # By the end of its life, the certificate must be replaced.
        if self.certificate_lifetime.total_seconds() / 3 < pace.promotion + pace.settle:
            raise ConfigurationError(
                f"certificate_lifetime={self.certificate_lifetime} is too short: a rotation takes "
                f"{pace.promotion + pace.settle:g} seconds by poll_interval= and settle_time=."
            )
        # The first one is what API servers ask for.
        name = f"{service}.{namespace}"
        names = [f"{name}.svc", name, service, f"{name}.svc.cluster.local", *self.extra_sans]
        return Sharing(
            namespace=namespace,
            secret=self.secret or f"{service}-webhook-certs",
            names=tuple(dict.fromkeys(names)),
            lifetime=self.certificate_lifetime,
            pace=pace,
        )
