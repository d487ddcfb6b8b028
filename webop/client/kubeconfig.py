"""Kubeconfig files: finding, merging and checking them, down to one ConnectionInfo.

Place in the flow: login functions (:mod:`webop.client.logins`) read them at each login, with the
files that they refer to. Kubernetes: "Organizing Cluster Access Using kubeconfig Files". Mistakes
are told here, with the file and the entry, rather than by the TLS library or by the API server.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from webop.client.credentials import ConnectionInfo, find_server_problem
from webop.client.exec_plugins import PluginCredentials, parse_plugin
from webop.client.lifetimes import (
    build_outdated_message,
    choose_earliest,
    parse_certificate_lifetime,
    parse_token_lifetime,
)
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
    configs = [_load(path) for path in paths if not _is_absent(path)]
    if not configs:
        _refuse(f"There is no kubeconfig at {where}. Correct KUBECONFIG, or write the file.")
    choice = _select(_merge(configs), where)
    _warn_of_ignored(choice)
    credentials = _read_credentials(choice)
    return ConnectionInfo(
        server=_read_server(choice),
        insecure=choice.cluster.get("insecure-skip-tls-verify"),
        default_namespace=choice.namespace,
        proxy_url=choice.cluster.get("proxy-url"),
        **_read_file(choice.cluster, "certificate-authority", "ca", choice.cluster_owner),
        **credentials,
    )


class _Merged(NamedTuple):
    current: str | None
    contexts: dict[str, dict[str, Any]]
    clusters: dict[str, dict[str, Any]]
    users: dict[str, dict[str, Any]]


class _Choice(NamedTuple):
    """What the current context leads to, and how to call it in messages."""

    cluster: dict[str, Any]
    cluster_owner: str
    user: dict[str, Any]
    user_owner: str
    namespace: str | None


def _load(path: Path) -> dict[str, Any]:
    """Load one file with its relative paths made absolute."""
    import yaml  # noqa: PLC0415 - takes time that not everybody needs to spend

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as exc:
        message = f"The kubeconfig {path} is not YAML: {' '.join(str(exc).split())}"
        raise LoginError(message) from exc
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


def _is_absent(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # it is for the reading to say why
    return False


def _make_absolute(values: dict[str, Any], folder: Path) -> None:
    for key in _FILE_KEYS:
        if values.get(key):
            values[key] = str(folder / Path(values[key]).expanduser())
    plugin = values.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command") or ""):
        plugin["command"] = str(folder / plugin["command"])  # plain names are found by PATH


def _merge(configs: Iterable[Mapping[str, Any]]) -> _Merged:
    merged = _Merged(None, {}, {}, {})
    for config in configs:
        merged = merged._replace(current=merged.current or config.get("current-context"))
        for section, kind in _SECTIONS:
            known = getattr(merged, section)
            for item in config.get(section) or ():
                known.setdefault(item.get("name"), item.get(kind) or {})
    return merged


def _select(merged: _Merged, where: str) -> _Choice:
    if not merged.current:
        names = ", ".join(map(str, merged.contexts)) or "none"
        _refuse(
            f"There is no current context in {where} (known: {names}). Choose one: "
            f"kubectl config use-context NAME"
        )
    context = _pick(merged.contexts, "context", merged.current, where)
    cluster = _pick(merged.clusters, "cluster", context.get("cluster"), where)
    name = context.get("user")
    user = _pick(merged.users, "user", name, where) if name else {}
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


def _warn_of_ignored(choice: _Choice) -> None:
    for kind, values, owner in (
        ("cluster", choice.cluster, choice.cluster_owner),
        ("user", choice.user, choice.user_owner),
    ):
        found = [key for key in _IGNORED[kind] if values.get(key)]
        if found:
            logger.warning("Of %s, these fields are ignored: %s.", owner, ", ".join(found))


def _read_server(choice: _Choice) -> str:
    server = choice.cluster.get("server")
    if not server:
        owner = choice.cluster_owner
        _refuse(f"{owner[0].upper()}{owner[1:]} has no server: write its URL there.")
    problem = find_server_problem(server)
    if problem:
        _refuse(f"The server {server!r} of {choice.cluster_owner} {problem}.")
    return str(server)


def _read_credentials(choice: _Choice) -> dict[str, Any]:
    """Return what identifies the user, as arguments of ConnectionInfo."""
    user, owner = choice.user, choice.user_owner
    token = _read_token(user, owner)
    has_certificate = user.get("client-certificate") or user.get("client-certificate-data")
    if "exec" in user and not (token or has_certificate):
        return _build_arguments(_run_plugin(choice))
    certificate = _read_file(user, "client-certificate", "certificate", owner)
    now = dt.datetime.now(dt.UTC)
    lifetime = parse_token_lifetime(token)
    return {
        "username": user.get("username"),
        "password": user.get("password"),
        "token": token,
        "expiration": choose_earliest(
            _check_certificate(user, owner, now),
            lifetime.choose_expiration(now.timestamp()) if lifetime else None,
        ),
        **certificate,
        **_read_file(user, "client-key", "private_key", owner),
    }


def _run_plugin(choice: _Choice) -> PluginCredentials:
    cluster = dict(choice.cluster)
    if path := cluster.get("certificate-authority"):
        content = _read_bytes(path, "certificate-authority", choice.cluster_owner)
        cluster.setdefault("certificate-authority-data", base64.b64encode(content).decode())
    return parse_plugin(choice.user["exec"], owner=choice.user_owner, cluster=cluster).fetch()


def _build_arguments(credentials: PluginCredentials) -> dict[str, Any]:
    return {
        "token": credentials.token,
        "certificate_data": credentials.certificate,
        "private_key_data": credentials.key,
        "expiration": credentials.expiration,
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


def _read_file(values: Mapping[str, Any], key: str, name: str, owner: str) -> dict[str, Any]:
    """Return an argument of ConnectionInfo; never both the path and the data.

    Raises:
        LoginError: the file cannot be read, or is not PEM; the data are not base64 of PEM.
    """
    if data := values.get(f"{key}-data"):
        _decode(data, f"{key}-data", owner)
        return {f"{name}_data": data}
    path = values.get(key)
    if path and _PEM_MARK not in _read_bytes(path, key, owner):
        _refuse(f"The file {path} is not in PEM, while it is the {key} of {owner}.")
    return {f"{name}_path": path}


def _decode(data: object, key: str, owner: str) -> bytes:
    try:
        content = base64.b64decode(str(data))
    except binascii.Error as exc:
        _refuse(f"The {key} of {owner} is not in base64: {exc}.", exc)
    if _PEM_MARK not in content:
        _refuse(f"The {key} of {owner} is not PEM in base64. Use {key[:-5]} for a path.")
    return content


def _read_bytes(path: str, key: str, owner: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        _refuse(f"The file {path}, the {key} of {owner}, cannot be read: {_explain(exc)}.", exc)


def _check_certificate(user: Mapping[str, Any], owner: str, now: dt.datetime) -> dt.datetime | None:
    """Return when the client certificate is to be read anew, if there is one.

    Raises:
        LoginError: it has expired already: no API server would take it.
    """
    key = "client-certificate"
    if data := user.get(f"{key}-data"):
        pem = _decode(data, f"{key}-data", owner)
    elif path := user.get(key):
        pem = _read_bytes(path, key, owner)
    else:
        return None
    lifetime = parse_certificate_lifetime(pem)
    if lifetime is None:
        return None
    if lifetime.end <= now.timestamp():
        _refuse(build_outdated_message(owner, lifetime))
    return lifetime.choose_expiration(now.timestamp())


def _explain(exc: OSError | UnicodeDecodeError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def _refuse(message: str, cause: Exception | None = None) -> NoReturn:
    raise LoginError(message) from cause
