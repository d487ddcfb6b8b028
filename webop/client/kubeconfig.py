"""Login functions: where credentials come from (chapter "Authentication").

They are login handlers, or are called by login handlers of users. Each one returns None when its
source does not exist, so that they combine: ``login_with_service_account(**kw) or
login_with_kubeconfig(**kw)``. This module imports no HTTP and no client library by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from webop.client.credentials import ConnectionInfo
from webop.errors import LoginError

if TYPE_CHECKING:
    import logging

    Logger = logging.Logger | logging.LoggerAdapter[Any]

Login = Callable[..., ConnectionInfo | None]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_KUBECONFIG = "~/.kube/config"


def get_default_logins() -> tuple[Login, ...]:
    """Return what to call when the user has declared no login handlers.

    The installed client libraries, all of them; if there are none, a service account or
    a kubeconfig.
    """
    libraries: dict[str, Login] = {"pykube": login_via_pykube, "kubernetes": login_via_client}
    installed = tuple(login for name, login in libraries.items() if find_spec(name) is not None)
    return installed or (login_with_service_account, login_with_kubeconfig)


def login_with_service_account(**_: Any) -> ConnectionInfo | None:
    """Log in as the service account of the pod; None outside of pods.

    Kubernetes: "Accessing the Kubernetes API from a Pod".
    """
    return read_service_account(SERVICE_ACCOUNT, os.environ)


def login_with_kubeconfig(**_: Any) -> ConnectionInfo | None:
    """Log in with what is literally in the kubeconfig; None if there is no kubeconfig.

    The files are those of ``KUBECONFIG`` (separated as in PATH), or ``~/.kube/config``.
    There are no exec plugins and no refreshing of tokens: use a client library for them.

    Raises:
        LoginError: the kubeconfig is not usable; says why and where.
    """
    value = os.environ.get("KUBECONFIG", "")
    paths = [Path(path).expanduser() for path in value.split(os.pathsep) if path.strip()]
    if not paths:
        paths = [Path(_DEFAULT_KUBECONFIG).expanduser()]
        if not paths[0].exists():
            return None
    return read_kubeconfig(paths)


def login_via_pykube(*, logger: Logger, **_: Any) -> ConnectionInfo | None:
    """Log in with what pykube-ng finds; None if it is not installed.

    None too for users of exec plugins: pykube keeps their results to itself.

    Raises:
        LoginError: pykube-ng has found neither a service account nor a kubeconfig.
    """
    try:
        import pykube  # noqa: PLC0415 - optional
    except ImportError:
        return None
    try:
        config = pykube.KubeConfig.from_service_account()
        logger.debug("Pykube has found a service account.")
    except FileNotFoundError:
        try:
            config = pykube.KubeConfig.from_file()
            logger.debug("Pykube has found a kubeconfig.")
        except (pykube.PyKubeError, FileNotFoundError) as exc:
            message = "Pykube has found neither a service account nor a kubeconfig."
            raise LoginError(message) from exc
    cluster, user = config.cluster, config.user
    if "exec" in user and not user.get("token"):
        logger.warning("Pykube does not tell what exec plugins bring: pip install kubernetes.")
        return None
    return ConnectionInfo(
        server=cluster.get("server"),
        ca_path=_get_filename(cluster.get("certificate-authority")),
        insecure=cluster.get("insecure-skip-tls-verify"),
        username=user.get("username"),
        password=user.get("password"),
        token=user.get("token") or _fetch_provider_token(config),
        certificate_path=_get_filename(user.get("client-certificate")),
        private_key_path=_get_filename(user.get("client-key")),
        default_namespace=config.namespace,
        proxy_url=cluster.get("proxy-url"),
    )


def login_via_client(*, logger: Logger, **_: Any) -> ConnectionInfo | None:
    """Log in with what the official client library finds; None if it is not installed.

    The default configuration of the library is loaded by that, as if the user had done it.

    Raises:
        LoginError: the library has found neither a service account nor a kubeconfig.
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
            kubernetes.config.load_kube_config()
            logger.debug("The client library has found a kubeconfig.")
        except kubernetes.config.ConfigException as exc:
            message = "The client library has found neither a service account nor a kubeconfig."
            raise LoginError(message) from exc
    config = kubernetes.client.Configuration.get_default_copy()
    # The library calls its exec plugins and auth providers, and refreshes tokens, in this call.
    # The name of the key depends on the version of the library.
    headers = [config.get_api_key_with_prefix(key) for key in _HEADER_KEYS]
    *schemes, token = next(filter(None, headers), "").rsplit(" ", 1)
    return ConnectionInfo(
        server=config.host,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        username=config.username or None,
        password=config.password or None,
        scheme=schemes[0] if schemes else None,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
    )


def read_service_account(folder: Path, environ: Mapping[str, str]) -> ConnectionInfo | None:
    """Read the files of a service account: ``token``, and maybe ``ca.crt`` and ``namespace``.

    The server is the one of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which works
    without DNS; by default, kubernetes.default.svc.
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
    )


def read_kubeconfig(paths: Sequence[Path]) -> ConnectionInfo:
    """Read the current context of merged kubeconfig files.

    As kubectl does: absent files are skipped, the first file to set something wins, data win
    over paths, and relative paths start from the file where they are written.

    Raises:
        LoginError: no such files, no current context, names that lead to nothing, no server,
            or a user who needs an exec plugin.
    """
    where = os.pathsep.join(str(path) for path in paths)
    configs = [_load(path) for path in paths if path.exists()]
    if not configs:
        message = f"There is no kubeconfig at {where}."
        raise LoginError(message)
    merged = _merge(configs)
    name = merged.current
    if not name:
        message = f"There is no current context in {where}: kubectl config use-context ..."
        raise LoginError(message)
    context = _pick(merged.contexts, "context", name, where)
    cluster = _pick(merged.clusters, "cluster", context.get("cluster"), where)
    user = _pick(merged.users, "user", context["user"], where) if context.get("user") else {}
    if not cluster.get("server"):
        message = f"The cluster {context['cluster']!r} has no server in {where}."
        raise LoginError(message)
    token = _get_token(user)
    if "exec" in user and not (token or user.get("client-certificate-data")):
        message = (
            f"The user {context['user']!r} in {where} logs in by an exec plugin. Install the "
            f"client library that runs it: pip install kubernetes."
        )
        raise LoginError(message)
    return ConnectionInfo(
        server=cluster["server"],
        insecure=cluster.get("insecure-skip-tls-verify"),
        username=user.get("username"),
        password=user.get("password"),
        token=token,
        default_namespace=context.get("namespace"),
        proxy_url=cluster.get("proxy-url"),
        **_get_file(cluster, "certificate-authority", "ca"),
        **_get_file(user, "client-certificate", "certificate"),
        **_get_file(user, "client-key", "private_key"),
    )


_HEADER_KEYS = ("BearerToken", "authorization")
_FILE_KEYS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class _Merged(NamedTuple):
    current: str | None
    contexts: dict[str, dict[str, Any]]
    clusters: dict[str, dict[str, Any]]
    users: dict[str, dict[str, Any]]


def _load(path: Path) -> dict[str, Any]:
    """Load one file with its relative paths made absolute."""
    import yaml  # noqa: PLC0415 - takes time that not everybody needs to spend

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as exc:
        message = f"The kubeconfig {path} cannot be read: {exc}"
        raise LoginError(message) from exc
    try:
        for section, kind in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            for item in config.get(section) or ():
                _make_absolute(item.get(kind) or {}, path.parent)
    except (AttributeError, TypeError) as exc:
        message = f"The kubeconfig {path} is not a kubeconfig: {exc}"
        raise LoginError(message) from exc
    return cast("dict[str, Any]", config)


def _make_absolute(values: dict[str, Any], folder: Path) -> None:
    for key in _FILE_KEYS:
        if values.get(key):
            values[key] = str(folder / Path(values[key]).expanduser())


def _merge(configs: Iterable[Mapping[str, Any]]) -> _Merged:
    merged = _Merged(None, {}, {}, {})
    for config in configs:
        merged = merged._replace(current=merged.current or config.get("current-context"))
        for kind in ("context", "cluster", "user"):
            known = getattr(merged, f"{kind}s")
            for item in config.get(f"{kind}s") or ():
                known.setdefault(item.get("name"), item.get(kind) or {})
    return merged


def _pick(known: Mapping[str, dict[str, Any]], kind: str, name: Any, where: str) -> dict[str, Any]:
    if name not in known:
        message = f"There is no {kind} {name!r} in {where}, though it is referred to."
        raise LoginError(message)
    return known[name]


def _get_file(values: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    """Return an argument of ConnectionInfo; never both the path and the data."""
    if values.get(f"{key}-data"):
        return {f"{name}_data": values[f"{key}-data"]}
    return {f"{name}_path": values.get(key)}


def _get_token(user: Mapping[str, Any]) -> str | None:
    """Return a token: from a file, as it is, or the last one that an auth provider has left."""
    path = user.get("tokenFile")
    provider = (user.get("auth-provider") or {}).get("config") or {}
    return (
        (_read_text(Path(path)) if path else None)
        or user.get("token")
        or provider.get("access-token")
    )


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


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
