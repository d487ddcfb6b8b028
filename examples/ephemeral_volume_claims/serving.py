"""Where the webhooks are served, and how the API server gets there, by the environment.

===================  =====================================================================
``WEBOP_MODULES``    set for uvicorn, which then serves the webhooks at its own address
``EVC_PORT``         the port of the webhooks otherwise; 9443 by default
``WEBOP_SERVICE``    the name of the Service in front of the pod, in a cluster
``EVC_CERTS``        a folder with ``tls.crt``, ``tls.key``, ``ca.crt``; by default they are made
                     by the operator, and shared by its replicas if there is a Service
                     (see ``certs/README.md``)
===================  =====================================================================

The name of the webhook configurations is ``WEBOP_ADMISSION__MANAGED``, one of webop's own
variables; set it to ``none`` to keep them by hand.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import webop

_MANAGED = "ephemeralvolumeclaims.kopf.dev"


def choose_server() -> webop.WebhookServer | None:
    """Return the server of the webhooks; None where uvicorn serves them."""
    if "WEBOP_MODULES" in os.environ:
        return None
    options: dict[str, Any] = {"port": int(os.environ.get("EVC_PORT", "9443"))}
    if folder := os.environ.get("EVC_CERTS"):
        names = {"certfile": "tls.crt", "pkeyfile": "tls.key", "cafile": "ca.crt"}
        options |= {option: str(Path(folder, name)) for option, name in names.items()}
    if "WEBOP_SERVICE" in os.environ:
        return webop.WebhookServiceServer(**options)
    return webop.WebhookServer(**options)


def choose_managed(managed: str | None) -> str | None:
    """Return the name of the webhook configurations to keep; None to keep none."""
    return managed if "WEBOP_ADMISSION__MANAGED" in os.environ else _MANAGED
