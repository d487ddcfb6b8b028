"""Login functions: with service accounts and kubeconfigs, or with installed client libraries.

They are login handlers, or login handlers of users call them (chapter "Authentication"). Each one
returns None when its source does not exist, so that you can combine them:
``login_with_service_account(**kw) or login_with_kubeconfig(**kw)``. All of them block.

webop takes only credentials from the libraries ("Piggybacking" in the manual), never their
connections, by their public API only. If a library brings none, webop reads the kubeconfig itself:
that either works or says what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.client.auth.expiration import detect_expiration
from webop.client.auth.vault import ConnectionInfo
from webop.errors import LoginError

if TYPE_CHECKING:
    Logger = logging.Logger | logging.LoggerAdapter[Any]

Login = Callable[..., ConnectionInfo | None]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

ABSENCE = "There is no kubeconfig and no service account."

# The name of the key depends on the version of the library.
_HEADER_KEYS = ("BearerToken", "authorization")


def login_with_service_account(**_: Any) -> ConnectionInfo | None:
    """Log in as the service account of the pod; None outside of pods.

    Kubernetes: "Accessing the Kubernetes API from a Pod".

    Raises:
        LoginError: the files of the service account cannot be read.
    """
    return read_service_account(SERVICE_ACCOUNT, os.environ)


def login_with_kubeconfig(**_: Any) -> ConnectionInfo | None:
    """Log in with the current context of the kubeconfig; None if there is no kubeconfig.

    The files are those of ``KUBECONFIG`` (separated as in PATH), or ``~/.kube/config``. Exec
    plugins are run. Auth providers are not run: their last stored token is used.

    Raises:
        LoginError: the kubeconfig is not usable; the message says why and where.
    """
    # It is slow to load, and not everything that imports webop logs in.
    from webop.client.auth.kubeconfig import find_kubeconfig, read_kubeconfig  # noqa: PLC0415

    paths = find_kubeconfig(os.environ)
    return read_kubeconfig(paths) if paths else None


def read_service_account(folder: Path, environ: Mapping[str, str]) -> ConnectionInfo | None:
    """Read the files of a service account: ``token``, and maybe ``ca.crt`` and ``namespace``.

    The server is that of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which works without
    DNS; by default, kubernetes.default.svc. The kubelet replaces the token long before its end. The
    credentials expire shortly before the token does, so that the next one is read in time.
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
    """Return a message: where webop has looked for credentials, and what to do."""
    place = os.environ.get("KUBECONFIG") or "not set"
    return (
        f"There is no kubeconfig (KUBECONFIG is {place}, and there is no ~/.kube/config) and no "
        "service account of a pod. Provide one of them, such as by 'webop cluster start', or a "
        "@webop.on.login() handler."
    )


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as exc:
        message = f"The file {path} of the service account cannot be read: {exc}"
        raise LoginError(message, kind="The service account cannot be read.") from exc


def get_default_logins() -> tuple[Login, ...]:
    """Return the login functions for operators without login handlers.

    They are those of all installed client libraries; otherwise, service account and kubeconfig.
    """
    libraries: dict[str, Login] = {"pykube": login_via_pykube, "kubernetes": login_via_client}
    if find_spec("kubernetes") is None:
        libraries["kubernetes_asyncio"] = login_via_async_client_in_thread
    installed = tuple(login for name, login in libraries.items() if find_spec(name) is not None)
    return installed or (login_with_service_account, login_with_kubeconfig)


@dataclass(frozen=True)
class LoginOutcome:
    """The credentials from logins by name, and the reasons for missing ones, with their kinds.

    Failures can pass; mistakes must be corrected first.
    """

    infos: dict[str, ConnectionInfo] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    mistakes: dict[str, str] = field(default_factory=dict)

    def explain(self) -> str:
        """Return the reasons as text; empty if there are none."""
        return " ".join(self.failures | self.mistakes)

    @property
    def kind(self) -> str:
        """The reasons as probes may show them."""
        return " ".join(dict.fromkeys((self.failures | self.mistakes).values()))


async def call_default_logins(logger: Logger) -> LoginOutcome:
    """Call the default logins in threads; if one fails, the others may succeed."""
    outcome = LoginOutcome()
    for login in get_default_logins():
        name = login.__name__
        logger.debug("Calling %s().", name)
        try:
            info = await call_in_dedicated_thread(partial(login, logger=logger))
        except LoginError as exc:
            outcome.failures[f"{str(exc).rstrip('. ')}."] = exc.kind
        except Exception as exc:  # noqa: BLE001 - any error of a client library
            # Without its message, which can quote the kubeconfig.
            place, error = traceback.extract_tb(exc.__traceback__)[-1], type(exc).__name__
            text = f"{name} failed: {error} in {place.filename}, line {place.lineno}."
            outcome.failures[text] = "A client library failed."
        else:
            if info is not None:
                outcome.infos[name] = info
    return outcome


def login_via_pykube(**_: Any) -> ConnectionInfo | None:
    """Log in with the credentials of pykube-ng; None if it is not installed.

    webop reads its sources itself, and runs the exec plugins.

    Raises:
        LoginError: there is neither a service account nor a kubeconfig, or it is not usable.
    """
    if find_spec("pykube") is None:
        return None
    info = login_with_service_account() or login_with_kubeconfig()
    if info is None:
        raise LoginError(build_absence_message(), kind=ABSENCE)
    return info


def login_via_client(*, logger: Logger, **_: Any) -> ConnectionInfo | None:
    """Log in with what the official client library finds; None if it is not installed.

    This also loads the default configuration of the library.

    Raises:
        LoginError: there is neither a service account nor a kubeconfig, or it is not usable.
    """
    try:
        import kubernetes.config  # noqa: PLC0415 - optional
    except ImportError:
        return None
    place, others = _find_source(kubernetes.config, logger)
    try:
        if place:
            kubernetes.config.load_kube_config(config_file=place)
    except Exception:  # noqa: BLE001 - any error of the library
        return login_with_kubeconfig()
    config = kubernetes.client.Configuration.get_default_copy()
    # The library refreshes tokens in this call.
    headers = [config.get_api_key_with_prefix(key) for key in _HEADER_KEYS]
    return _read_configuration(config, headers, others)


async def login_via_async_client(*, logger: Logger, **_: Any) -> ConnectionInfo | None:
    """Log in with what the library kubernetes_asyncio finds; None if it is not installed.

    This also loads the default configuration of the library.

    Raises:
        LoginError: there is neither a service account nor a kubeconfig, or it is not usable.
    """
    try:
        import kubernetes_asyncio.config  # noqa: PLC0415 - optional
    except ImportError:
        return None
    place, others = _find_source(kubernetes_asyncio.config, logger)
    try:
        if place:
            await kubernetes_asyncio.config.load_kube_config(config_file=place)
    except Exception:  # noqa: BLE001 - any error of the library
        return await asyncio.to_thread(login_with_kubeconfig)
    config = kubernetes_asyncio.client.Configuration.get_default_copy()
    answers = [config.get_api_key_with_prefix(key) for key in _HEADER_KEYS]
    headers = [await answer if inspect.isawaitable(answer) else answer for answer in answers]
    return await asyncio.to_thread(_read_configuration, config, headers, others)


def login_via_async_client_in_thread(**kwargs: Any) -> ConnectionInfo | None:
    """Log in with kubernetes_asyncio, as a blocking function like the others."""
    return asyncio.run(login_via_async_client(**kwargs))


def _find_source(library: Any, logger: Logger) -> tuple[str, dict[str, Any]]:
    """Let a library load the service account; or return where the kubeconfig is.

    Refuse kubeconfigs that libraries misinterpret; return what they leave out of the others.
    """
    with contextlib.suppress(library.ConfigException):
        library.load_incluster_config()
        logger.debug("%s has found a service account.", library.__name__)
        return "", {}
    from webop.client.auth.kubeconfig import choose_context, find_kubeconfig  # noqa: PLC0415

    paths = find_kubeconfig(os.environ)
    if not paths:
        raise LoginError(build_absence_message(), kind=ABSENCE)
    return os.pathsep.join(map(str, paths)), choose_context(paths).list_others()


def _read_configuration(
    config: Any, headers: list[str | None], others: dict[str, Any]
) -> ConnectionInfo:
    """Return the credentials in the configuration of a client library."""
    *schemes, token = next(filter(None, headers), "").rsplit(" ", 1)
    path = Path(config.cert_file or "")
    pem = path.read_bytes() if path.is_file() else b""
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
        expiration=detect_expiration(token, pem, "the kubeconfig's user"),
        **others,
    )
    # If an exec plugin fails, the library only logs it, and continues without credentials.
    is_nobody = not (info.authorization or info.certificate_path)
    return login_with_kubeconfig() or info if is_nobody else info
