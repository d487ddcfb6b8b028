"""Kubeconfig files: finding, merging and checking them, down to one ConnectionInfo.

Place in the flow: login functions (:mod:`webop.client.logins`) read them at each login, with the
files that they refer to. Kubernetes: "Organizing Cluster Access Using kubeconfig Files". Mistakes
are told here, with the file and the entry, rather than by the TLS library or by the API server.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from webop.client.credentials import ConnectionInfo, find_server_problem, quote_url
from webop.client.exec_plugins import parse_plugin
from webop.client.lifetimes import detect_expiration
from webop.errors import LoginError

logger = logging.getLogger(__name__)

_DEFAULT = "~/.kube/config"
_SECTIONS = (("contexts", "context"), ("clusters", "cluster"), ("users", "user"))
_FILE_KEYS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_PEM_MARK = b"-----BEGIN"

# What is known, and does nothing here: requests are made without it, which can matter.
_IGNORED = {"cluster": ("tls-server-name",), "user": ("as", "as-uid", "as-groups")}


def find_kubeconfig(environ: Mapping[str, str]) -> list[Path]:
    """Return the paths of KUBECONFIG (separated as in PATH), or ``~/.kube/config`` if it exists."""
    value = environ.get("KUBECONFIG", "")
    paths = [Path(path).expanduser() for path in value.split(os.pathsep) if path.strip()]
    if paths:
        return paths
    # There may be no home, or it may be closed to this user: containers run as anybody.
    with contextlib.suppress(RuntimeError, OSError):
        default = Path(_DEFAULT).expanduser()
        return [default] if default.exists() else []
    return []


def read_kubeconfig(paths: Sequence[Path]) -> ConnectionInfo:
    """Read the current context of merged kubeconfig files.

    As kubectl does: absent files are skipped, the first file to set something wins, data win
    over paths, relative paths start from the file where they are written, and a user's exec plugin
    is run, unless there is a token or a certificate beside it.

    Raises:
        LoginError: no such files, no current context, names that lead to nothing, a server that
            is no URL, certificates or tokens that cannot be read or have expired, a plugin that
            has failed.
    """
    where = os.pathsep.join(str(path) for path in paths)
    configs = [config for config in map(_load, paths) if config is not None]
    if not configs:
        _refuse(f"There is no kubeconfig at {where}. Correct KUBECONFIG, or write the file.")
    choice = _select(configs, where)
    for kind, values, owner in (
        ("cluster", choice.cluster, choice.cluster_owner),
        ("user", choice.user, choice.user_owner),
    ):
        found = [key for key in _IGNORED[kind] if values.get(key)]
        if found:
            logger.warning("Of %s, these fields are ignored: %s.", owner, ", ".join(found))
    credentials = _read_credentials(choice)
    cluster, owner = choice.cluster, choice.cluster_owner
    server = cluster.get("server")
    if not server:
        _refuse(f"{owner[0].upper()}{owner[1:]} has no server: write its URL there.")
    if problem := find_server_problem(server):
        _refuse(f"The server {quote_url(server)} of {owner} {problem}.")
    return ConnectionInfo(
        server=str(server),
        insecure=cluster.get("insecure-skip-tls-verify"),
        default_namespace=choice.namespace,
        proxy_url=cluster.get("proxy-url"),
        **_read_pem(cluster, "certificate-authority", "ca", owner)[0],
        **credentials,
    )


class _Choice(NamedTuple):
    """What the current context leads to, and how to call it in messages."""

    cluster: dict[str, Any]
    cluster_owner: str
    user: dict[str, Any]
    user_owner: str
    namespace: str | None


def _load(path: Path) -> dict[str, Any] | None:
    """Load one file with its relative paths made absolute; None if there is no such file."""
    import yaml  # noqa: PLC0415 - takes time that not everybody needs to spend

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as exc:
        message = f"The kubeconfig {path} is not YAML: {' '.join(str(exc).split())}"
        raise LoginError(message) from exc
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as exc:
        _refuse(f"The kubeconfig {path} cannot be read: {_explain(exc)}.", exc)
    if config is None:
        return {}
    if not isinstance(config, dict):
        _refuse(f"The file {path} is not a kubeconfig: it holds no mapping, but {config!r:.40}.")
    try:
        for section, kind in _SECTIONS:
            for item in config.get(section) or ():
                _make_absolute(item.get(kind) or {}, path.absolute().parent)
    except (AttributeError, TypeError) as exc:
        message = f"The file {path} is not a kubeconfig: the {section} are no list of entries"
        _refuse(f"{message} with a name and a {kind}.", exc)
    return cast("dict[str, Any]", config)


def _make_absolute(values: dict[str, Any], folder: Path) -> None:
    for key in _FILE_KEYS:
        if values.get(key):
            values[key] = str(folder / Path(values[key]).expanduser())
    plugin = values.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command") or ""):
        plugin["command"] = str(folder / plugin["command"])  # plain names are found by PATH


def _select(configs: Iterable[Mapping[str, Any]], where: str) -> _Choice:
    """Follow the current context through the files: the first to set something wins."""
    current: str | None = None
    known: dict[str, dict[str, dict[str, Any]]] = {section: {} for section, _ in _SECTIONS}
    for config in configs:
        current = current or config.get("current-context")
        for section, kind in _SECTIONS:
            for item in config.get(section) or ():
                known[section].setdefault(item.get("name"), item.get(kind) or {})
    if not current:
        names = ", ".join(map(str, known["contexts"])) or "none"
        _refuse(
            f"There is no current context in {where} (known: {names}). Choose one: "
            f"kubectl config use-context NAME"
        )
    context = _pick(known["contexts"], "context", current, where)
    cluster = _pick(known["clusters"], "cluster", context.get("cluster"), where)
    name = context.get("user")
    user = _pick(known["users"], "user", name, where) if name else {}
    return _Choice(
        cluster=cluster,
        cluster_owner=f"the cluster {context['cluster']!r} in {where}",
        user=user,
        user_owner=f"the user {name!r} in {where}",
        namespace=context.get("namespace"),
    )


def _pick(known: Mapping[str, dict[str, Any]], kind: str, name: Any, where: str) -> dict[str, Any]:
    if name not in known:
        names = ", ".join(map(str, known)) or "none"
        source = "the current context" if kind == "context" else "of the current context"
        _refuse(f"There is no {kind} {name!r} in {where}, though it is {source}. Known: {names}.")
    return known[name]


def _read_credentials(choice: _Choice) -> dict[str, Any]:
    """Return what identifies the user, as arguments of ConnectionInfo."""
    user, owner = choice.user, choice.user_owner
    token = _read_token(user, owner)
    has_certificate = user.get("client-certificate") or user.get("client-certificate-data")
    if "exec" in user and not (token or has_certificate):
        cluster = dict(choice.cluster)
        if path := cluster.get("certificate-authority"):
            content = _read_bytes(path, "certificate-authority", choice.cluster_owner)
            cluster.setdefault("certificate-authority-data", base64.b64encode(content).decode())
        made = parse_plugin(user["exec"], owner=owner, cluster=cluster).fetch()
        return {
            "token": made.token,
            "certificate_data": made.certificate,
            "private_key_data": made.key,
            "expiration": made.expiration,
        }
    certificate, pem = _read_pem(user, "client-certificate", "certificate", owner)
    return {
        "username": user.get("username"),
        "password": user.get("password"),
        "token": token,
        "expiration": detect_expiration(token, pem, owner),
        **certificate,
        **_read_pem(user, "client-key", "private_key", owner)[0],
    }


def _read_token(user: Mapping[str, Any], owner: str) -> str | None:
    """Return a token: from a file, as it is, or the last one that an auth provider has left."""
    token = user.get("token")
    if path := user.get("tokenFile"):
        try:
            found = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            if not token:
                message = f"The tokenFile {path} of {owner} cannot be read: {_explain(exc)}."
                _refuse(message, exc)
        else:
            token = found or token
    provider = (user.get("auth-provider") or {}).get("config") or {}
    return token or provider.get("access-token")


def _read_pem(
    values: Mapping[str, Any], key: str, name: str, owner: str
) -> tuple[dict[str, Any], bytes]:
    """Return an argument of ConnectionInfo, never both the path and the data; and the content."""
    if data := values.get(f"{key}-data"):
        try:
            content = base64.b64decode(str(data))
        except binascii.Error as exc:
            _refuse(f"The {key}-data of {owner} is not in base64: {exc}.", exc)
        if _PEM_MARK not in content:
            _refuse(f"The {key}-data of {owner} is not PEM in base64. Use {key} for a path.")
        return {f"{name}_data": data}, content
    path = values.get(key)
    content = _read_bytes(path, key, owner) if path else b""
    if path and _PEM_MARK not in content:
        _refuse(f"The file {path} is not in PEM, while it is the {key} of {owner}.")
    return {f"{name}_path": path}, content


def _read_bytes(path: str, key: str, owner: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        _refuse(f"The file {path}, the {key} of {owner}, cannot be read: {_explain(exc)}.", exc)


def _explain(exc: OSError | UnicodeDecodeError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def _refuse(message: str, cause: Exception | None = None) -> NoReturn:
    raise LoginError(message) from cause
