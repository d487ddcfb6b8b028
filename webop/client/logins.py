"""Login functions that need no client library: service accounts and kubeconfigs.

They are login handlers, or are called by login handlers of users (chapter "Authentication"). Each
one returns None when its source does not exist, so that they combine:
``login_with_service_account(**kw) or login_with_kubeconfig(**kw)``. All of them block.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from webop.client.credentials import ConnectionInfo
from webop.client.lifetimes import detect_expiration
from webop.errors import LoginError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def login_with_service_account(**_: Any) -> ConnectionInfo | None:
    """Log in as the service account of the pod; None outside of pods.

    Kubernetes: "Accessing the Kubernetes API from a Pod".

    Raises:
        LoginError: the files of the service account cannot be read.
    """
    return read_service_account(SERVICE_ACCOUNT, os.environ)


def login_with_kubeconfig(**_: Any) -> ConnectionInfo | None:
    """Log in with the current context of the kubeconfig; None if there is no kubeconfig.

    The files are those of ``KUBECONFIG`` (separated as in PATH), or ``~/.kube/config``. Tokens,
    passwords and certificates are taken literally; exec plugins are run. Auth providers are not:
    the last token that they have left is taken.

    Raises:
        LoginError: the kubeconfig is not usable; says why and where.
    """
    # Whoever only imports webop, such as a test, does not log in: it takes a while to load.
    from webop.client.kubeconfig import find_kubeconfig, read_kubeconfig  # noqa: PLC0415

    paths = find_kubeconfig(os.environ)
    return read_kubeconfig(paths) if paths else None


def read_service_account(folder: Path, environ: Mapping[str, str]) -> ConnectionInfo | None:
    """Read the files of a service account: ``token``, and maybe ``ca.crt`` and ``namespace``.

    The server is the one of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which works
    without DNS; by default, kubernetes.default.svc. The kubelet replaces the token long before its
    end; the credentials expire a little before that, so that the next one is read in time.

    Raises:
        LoginError: a file is there and cannot be read.
    """
    token = _read_text(folder / "token")
    if token is None:
        return None
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    server = "https://kubernetes.default.svc"
    if host:
        address = f"[{host}]" if ":" in host else host
        server = f"https://{address}:{port or 443}"
    ca_path = folder / "ca.crt"
    return ConnectionInfo(
        server=server,
        ca_path=ca_path if ca_path.exists() else None,
        token=token,
        default_namespace=_read_text(folder / "namespace"),
        expiration=detect_expiration(token),
    )


def build_absence_message() -> str:
    """Say where credentials have been looked for when there are none, and what to do."""
    place = os.environ.get("KUBECONFIG") or "not set"
    return (
        f"There is no kubeconfig (KUBECONFIG, which is {place}, or ~/.kube/config) and no service "
        f"account of a pod. Provide one of them, or a @webop.on.login() handler."
    )


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as exc:
        message = f"The file {path} of the service account cannot be read: {exc}"
        raise LoginError(message) from exc
