"""Login functions that ask the installed client libraries ("Piggybacking" in the manual).

Only the results are taken from the libraries, never their connections. Where a library gives up
on a kubeconfig, or cannot hand on what an exec plugin has brought, webop reads the kubeconfig
itself (:mod:`webop.client.logins`): either that works, or it says what is wrong. This module
imports no client library by itself.
"""

from __future__ import annotations

import datetime as dt
import inspect
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webop.client.credentials import ConnectionInfo, find_server_problem
from webop.client.lifetimes import choose_earliest, detect_expiration
from webop.client.logins import (
    build_absence_message,
    login_with_kubeconfig,
    login_with_service_account,
)
from webop.errors import LoginError

if TYPE_CHECKING:
    import logging

    Logger = logging.Logger | logging.LoggerAdapter[Any]

Login = Callable[..., ConnectionInfo | None]

# The name of the key depends on the version of the library.
_HEADER_KEYS = ("BearerToken", "authorization")


def get_default_logins() -> tuple[Login, ...]:
    """Return what to call when the user has declared no login handlers.

    The installed client libraries, all of them; if there are none, a service account or
    a kubeconfig.
    """
    libraries: dict[str, Login] = {"pykube": login_via_pykube, "kubernetes": login_via_client}
    installed = tuple(login for name, login in libraries.items() if find_spec(name) is not None)
    return installed or (login_with_service_account, login_with_kubeconfig)


def login_via_pykube(*, logger: Logger, **_: Any) -> ConnectionInfo | None:
    """Log in with what pykube-ng finds; None if it is not installed.

    Exec plugins are run by webop: pykube keeps their results to itself.

    Raises:
        LoginError: there is neither a service account nor a kubeconfig, or it is not usable.
    """
    try:
        import pykube  # noqa: PLC0415 - optional
    except ImportError:
        return None
    try:
        config = pykube.KubeConfig.from_service_account()
        logger.debug("Pykube has found a service account.")
    except (FileNotFoundError, KeyError):
        try:
            config = pykube.KubeConfig.from_file()
            is_complete = "exec" not in config.user or bool(config.user.get("token"))
            is_complete = is_complete and not find_server_problem(config.cluster.get("server"))
        except Exception as exc:  # noqa: BLE001 - of the library, whatever it is
            return _read_instead(exc)
        logger.debug("Pykube has found a kubeconfig.")
        if not is_complete:
            return login_with_kubeconfig()
    cluster, user = config.cluster, config.user
    token = user.get("token") or _fetch_provider_token(config)
    certificate_path = _get_filename(user.get("client-certificate"))
    return ConnectionInfo(
        server=cluster.get("server"),
        ca_path=_get_filename(cluster.get("certificate-authority")),
        insecure=cluster.get("insecure-skip-tls-verify"),
        username=user.get("username"),
        password=user.get("password"),
        token=token,
        certificate_path=certificate_path,
        private_key_path=_get_filename(user.get("client-key")),
        default_namespace=config.namespace,
        proxy_url=cluster.get("proxy-url"),
        expiration=_detect_expiration(token, certificate_path),
    )


def login_via_client(*, logger: Logger, **_: Any) -> ConnectionInfo | None:
    """Log in with what the official client library finds; None if it is not installed.

    The default configuration of the library is loaded by that, as if the user had done it.

    Raises:
        LoginError: there is neither a service account nor a kubeconfig, or it is not usable.
    """
    try:
        import kubernetes.config  # noqa: PLC0415 - optional
    except ImportError:
        return None
    try:
        kubernetes.config.load_incluster_config()
        logger.debug("The client library has found a service account.")
    except kubernetes.config.ConfigException:
        try:
            # By itself, the library looks where KUBECONFIG pointed to when it was imported.
            place = os.environ.get("KUBECONFIG") or "~/.kube/config"
            kubernetes.config.load_kube_config(config_file=place)
            logger.debug("The client library has found a kubeconfig.")
        except Exception as exc:  # noqa: BLE001 - of the library, whatever it is
            return _read_instead(exc)
    config = kubernetes.client.Configuration.get_default_copy()
    # The library calls its exec plugins and auth providers, and refreshes tokens, in this call.
    headers = [config.get_api_key_with_prefix(key) for key in _HEADER_KEYS]
    *schemes, token = next(filter(None, headers), "").rsplit(" ", 1)
    info = ConnectionInfo(
        server=config.host,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        username=config.username or None,
        password=config.password or None,
        scheme=schemes[0] if schemes else None,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
        expiration=choose_earliest(
            _detect_plugin_expiration(config), _detect_expiration(token, config.cert_file)
        ),
    )
    # What goes wrong with exec plugins, the library only logs, and goes on as nobody.
    is_nobody = not (info.authorization or info.certificate_path)
    if is_nobody or find_server_problem(info.server):
        return login_with_kubeconfig() or info
    return info


def _read_instead(exc: Exception) -> ConnectionInfo:
    """Read the kubeconfig that a library has failed with, or say what is wrong with it."""
    info = login_with_kubeconfig()
    if info is None:
        raise LoginError(build_absence_message()) from exc
    return info


def _detect_expiration(token: str | None, certificate_path: str | None) -> dt.datetime | None:
    path = Path(certificate_path or "")
    pem = path.read_bytes() if path.is_file() else b""
    return detect_expiration(token, pem, "the kubeconfig's user")


def _detect_plugin_expiration(config: Any) -> dt.datetime | None:
    """Return what an exec plugin has said; the library keeps it where it refreshes the token."""
    hook = getattr(config, "refresh_api_key_hook", None)
    if not inspect.isfunction(hook):
        return None
    loader = inspect.getclosurevars(hook).nonlocals.get("self")
    expiry = getattr(loader, "expiry", None)
    if not isinstance(expiry, dt.datetime):
        return None
    expiry = expiry if expiry.tzinfo else expiry.replace(tzinfo=dt.UTC)
    return expiry if expiry > dt.datetime.now(dt.UTC) else None


def _get_filename(value: Any) -> str | None:
    """Return the file of a BytesOrFile of pykube, which may be a temporary one."""
    return value.filename() if value else None


def _fetch_provider_token(config: Any) -> str | None:
    """Let pykube renew the token of an auth provider, which it does in any request."""
    import pykube  # noqa: PLC0415 - optional

    if not config.user.get("auth-provider"):
        return None
    pykube.HTTPClient(config).get(version="", base="/")
    token: str | None = config.user["auth-provider"].get("config", {}).get("access-token")
    return token
