"""Choose the webhook server by environment variables.

===================  =====================================================================
``WEBOP_MODULES``    set under uvicorn, which then serves the webhooks itself
``EVC_PORT``         otherwise the port for webhooks; 9443 by default
``WEBOP_SERVICE``    the name of the Service of the operator, in a cluster
``EVC_CERTS``        a folder with ``tls.crt``, ``tls.key``, ``ca.crt``; without it, the operator
                     generates them, and shares them between replicas if it has a Service
                     (see ``certs/README.md``)
===================  =====================================================================

``WEBOP_ADMISSION__MANAGED``, a variable of webop, names the webhook configurations. Set it to
``none`` to manage them yourself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import webop

_MANAGED = "ephemeralvolumeclaims.kopf.dev"


def choose_server() -> webop.WebhookServer | None:
    """Return the webhook server; None if uvicorn serves the webhooks."""
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
    """Return the name of the webhook configurations; None if you manage them yourself."""
    return managed if "WEBOP_ADMISSION__MANAGED" in os.environ else _MANAGED
