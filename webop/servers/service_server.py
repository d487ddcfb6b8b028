"""A webhook server for operators in a cluster: behind a Service, with certificates by webop.

Users' handler files import this module, so slow imports happen when the server starts.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from webop.errors import (
    APIConnectionError,
    APIError,
    APIServerError,
    ConfigurationError,
    LoginError,
)
from webop.objects.names import RFC1123_LABEL
from webop.servers.base import WebhookClientConfig, WebhookClientConfigService
from webop.servers.certificates.sources import read_material
from webop.servers.local import WebhookServer

if TYPE_CHECKING:
    from webop.servers.certificates.sources import CertificateSource

logger = logging.getLogger(__name__)

_SERVICE_VARIABLE = "WEBOP_SERVICE"


@dataclass(kw_only=True, eq=False, repr=False)
class WebhookServiceServer(WebhookServer):
    """A server on all interfaces of a pod, which API servers reach by a Service: for clusters.

    ::

        settings.admission.server = webop.WebhookServiceServer()

    Without ``certfile``, it makes its certificate and shares it with all replicas of the operator
    in a Secret. It renews the certificate after two thirds of its life, and when the Secret is
    deleted or its annotation ``webop.dev/rotate`` gets another value. No request fails: API servers
    trust the new CA before the new certificate is used, and the old CA for long after that. A
    Secret that somebody else keeps (such as cert-manager) is followed in the same way, and never
    written. See docs/howto/webhook_servers.md.

    The operator needs the verbs get and update for the Secret, and create for secrets in its
    namespace.

    Args:
        service: the name of the Service; by default, the environment variable WEBOP_SERVICE.
        namespace: of the Service and the Secret; by default, that of the operator.
        service_port: the port of the Service.
        secret: the name of the Secret; by default, ``<service>-webhook-certs``.
        certificate_lifetime: how long the certificates that webop makes are valid.
        poll_interval: seconds between checks of the Secret.
        settle_time: seconds that API servers may take to follow a changed configuration.
        overlap: seconds for which old CA certificates stay trusted, at least.

    The other options are those of :class:`~webop.WebhookServer`, except ``host=`` and
    ``insecure=``: clients connect to the Service, by HTTPS. With ``certfile=``, the files are
    checked for changes and there is no Secret. Without, ``cafile=`` and ``cadata=`` are trusted
    beside its CA.
    """

    DEFAULT_ADDR: ClassVar[str] = ""
    TYPES: ClassVar[dict[str, Any]] = {
        **WebhookServer.TYPES,
        **dict.fromkeys(("service", "namespace", "secret"), str),
        "service_port": int,
        "certificate_lifetime": dt.timedelta,
        **dict.fromkeys(("poll_interval", "settle_time", "overlap"), int | float),
    }

    service: str | None = None
    namespace: str | None = None
    service_port: int = 443
    secret: str | None = None
    # As in cert-manager: six renewals a year, each with a month left to repair what prevents it.
    certificate_lifetime: dt.timedelta = dt.timedelta(days=90)
    poll_interval: float = 5.0
    settle_time: float = 15.0
    overlap: float = 600.0

    async def _prepare(self) -> None:
        if self.insecure or self.host:
            raise ConfigurationError(
                "WebhookServiceServer takes neither insecure=True nor host=: API servers connect "
                "to its Service, by HTTPS. Set service=, or use WebhookServer."
            )
        await self._wait_for_namespace()
        self._get_names()  # report a missing one first

    def build_source(self) -> CertificateSource:
        """Return the Secret, or the files (:meth:`WebhookServer.build_source`)."""
        if self.certfile is not None or self.pkeyfile is not None:
            source = super().build_source()
            source.settle, source.overlap = self.settle_time, self.overlap
            return source
        from webop.servers.certificates.certs import normalize_hostnames  # noqa: PLC0415 - slow
        from webop.servers.certificates.secret import SecretSource  # noqa: PLC0415 - slow

        cluster = self._hosting.cluster
        if cluster is None:
            raise ConfigurationError(
                "WebhookServiceServer keeps its certificates in a Secret, but there is no cluster. "
                "Run it in an operator with access to one, or set certfile= and pkeyfile=."
            )
        # A rotation must be complete before the certificate expires.
        least = self.poll_interval + 2 * self.settle_time
        if self.certificate_lifetime.total_seconds() / 3 < least:
            raise ConfigurationError(
                f"certificate_lifetime={self.certificate_lifetime} is too short: a rotation takes "
                f"{least:g} seconds by poll_interval= and settle_time=."
            )
        service, namespace = self._get_names()
        secret = self.name_secret(service)
        self._hosting.secret = (namespace, secret)
        name = f"{service}.{namespace}"  # API servers connect to the first one
        names = [f"{name}.svc", name, service, f"{name}.svc.cluster.local", *self.extra_sans]
        return SecretSource(
            cluster=cluster,
            namespace=namespace,
            name=secret,
            hostnames=tuple(map(str, normalize_hostnames(names))),
            lifetime=self.certificate_lifetime,
            read_extra=functools.partial(read_material, cafile=self.cafile, cadata=self.cadata),
            interval=self.poll_interval,
            settle=self.settle_time,
            overlap=self.overlap,
        )

    def name_secret(self, service: str) -> str:
        """Return the name of the Secret with the certificate for a Service."""
        return self.secret or f"{service}-webhook-certs"

    def _build_place(self, port: int) -> WebhookClientConfig:  # noqa: ARG002
        service, namespace = self._get_names()
        reference = WebhookClientConfigService(
            namespace=namespace, name=service, port=self.service_port
        )
        if path := (self.path or "").strip("/"):
            reference["path"] = f"/{path}"
        return WebhookClientConfig(service=reference)

    def _get_names(self) -> tuple[str, str]:
        cluster = self._hosting.cluster
        service = self.service or os.environ.get(_SERVICE_VARIABLE)
        namespace = self.namespace or (cluster and cluster.namespace)
        if not service:
            raise ConfigurationError(
                "WebhookServiceServer does not know its Service: set service= or the environment "
                f"variable {_SERVICE_VARIABLE}."
            )
        if not namespace:
            raise ConfigurationError(
                f"The namespace of the Service {service!r} is not known: set namespace=."
            )
        for option, name in (("service", service), ("namespace", namespace)):
            if not RFC1123_LABEL.fullmatch(name):
                raise ConfigurationError(
                    f"{option}= of WebhookServiceServer must be a Kubernetes name: at most 63 "
                    f"lowercase letters, digits and '-'; got {name!r}."
                )
        if not 1 <= self.service_port <= 65535:
            raise ConfigurationError(
                f"service_port= of WebhookServiceServer must be from 1 to 65535, got "
                f"{self.service_port}."
            )
        return service, namespace

    async def _wait_for_namespace(self) -> None:
        """Wait for the login if necessary: it provides the operator's namespace."""
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
                return  # the login has succeeded
            else:
                return
