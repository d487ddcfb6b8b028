"""Where the webhooks are served, and how the API server gets there, by the environment.

===================  =====================================================================
``WEBOP_MODULES``    set for uvicorn, which then serves the webhooks at its own address
``EVC_PORT``         the port of the webhooks otherwise; 9443 by default
``EVC_SERVICE``      ``name.namespace`` or ``name.namespace:port`` of the Service in front of
                     the pod, in a cluster
``EVC_CERTS``        a folder with ``tls.crt``, ``tls.key``, ``ca.crt``; self-signed ones are
                     made at each start by default (see ``certs/README.md``)
===================  =====================================================================

The name of the webhook configurations is ``WEBOP_ADMISSION__MANAGED``, one of webop's own
variables; set it to ``none`` to keep them by hand.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import webop

_MANAGED = "ephemeralvolumeclaims.kopf.dev"


class ServiceServer(webop.WebhookServer):
    """A webhook server in a pod, which API servers reach through a Service.

    Args:
        service: ``name.namespace`` or ``name.namespace:port`` of the Service; the port is 443
            by default.
        options: of the server in general.
    """

    def __init__(self, service: str, **options: Any) -> None:
        host, _, port = service.partition(":")
        self._name, _, self._namespace = host.partition(".")
        self._port = int(port or 443)
        super().__init__(addr="0.0.0.0", host=f"{host}.svc", **options)  # noqa: S104 - a pod

    async def __call__(
        self, fn: webop.WebhookFn, /
    ) -> AsyncGenerator[webop.WebhookClientConfig, None]:
        """Serve, and name the Service instead of the URL, which API servers cannot resolve."""
        async for config in super().__call__(fn):
            service = webop.WebhookClientConfigService(
                name=self._name, namespace=self._namespace, port=self._port
            )
            yield {"service": service, "caBundle": config.get("caBundle")}


def choose_server() -> webop.WebhookServer | None:
    """Return the server of the webhooks; None where uvicorn serves them."""
    if "WEBOP_MODULES" in os.environ:
        return None
    options: dict[str, Any] = {"port": int(os.environ.get("EVC_PORT", "9443"))}
    if folder := os.environ.get("EVC_CERTS"):
        names = {"certfile": "tls.crt", "pkeyfile": "tls.key", "cafile": "ca.crt"}
        options |= {option: str(Path(folder, name)) for option, name in names.items()}
    service = os.environ.get("EVC_SERVICE")
    return ServiceServer(service, **options) if service else webop.WebhookServer(**options)


def choose_managed(managed: str | None) -> str | None:
    """Return the name of the webhook configurations to keep; None to keep none."""
    return managed if "WEBOP_ADMISSION__MANAGED" in os.environ else _MANAGED
