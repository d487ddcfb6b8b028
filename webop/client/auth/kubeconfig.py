"""Kubeconfig files: find, merge and check them, and build one ConnectionInfo.

Kubernetes: "Organizing Cluster Access Using kubeconfig Files". Mistakes are reported here, with the
file and the entry, before TLS or the API server fail because of them.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast
from urllib.parse import quote

from webop.client.auth.exec_plugins import parse_plugin
from webop.client.auth.expiration import detect_expiration
from webop.client.auth.urls import check_proxy, find_server_problem, quote_path, quote_url
from webop.client.auth.vault import ConnectionInfo
from webop.errors import LoginError

_DEFAULT = "~/.kube/config"
_SECTIONS = (("contexts", "context"), ("clusters", "cluster"), ("users", "user"))
_FILE_KEYS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_PEM_MARK = b"-----BEGIN"

_KIND = "The kubeconfig is not usable."

# As in client-go. The string "false" would be true, and switch verification off.
_TEXTS = (
    *("name", "cluster", "user", "namespace", "server", "proxy-url", "tls-server-name"),
    *("certificate-authority", "client-certificate", "client-key", "tokenFile"),
    *("certificate-authority-data", "client-certificate-data", "client-key-data"),
    *("token", "username", "password", "access-token", "as", "as-uid"),
)
_TYPES = (
    (str, "a string", _TEXTS),
    (bool, "true or false, without quotes", ("insecure-skip-tls-verify",)),
    (dict, "a mapping", ("auth-provider", "config", "exec", "as-user-extra")),
    (list, "a list", ("extensions", "as-groups")),
)


def find_kubeconfig(environ: Mapping[str, str]) -> list[Path]:
    """Return the paths of KUBECONFIG (separated as in PATH), or ``~/.kube/config`` if it exists."""
    value = environ.get("KUBECONFIG", "")
    paths = [Path(path).expanduser() for path in value.split(os.pathsep) if path.strip()]
    if paths:
        return paths
    # There can be no home, or one that this user cannot read: containers run as any user.
    with contextlib.suppress(RuntimeError, OSError):
        default = Path(_DEFAULT).expanduser()
        return [default] if default.exists() else []
    return []


def read_kubeconfig(paths: Sequence[Path]) -> ConnectionInfo:
    """Read the current context of merged kubeconfig files.

    As in kubectl: absent files are skipped, and the first file that sets a value wins. Data takes
    precedence over paths. Relative paths start at the directory of their file. The user's exec
    plugin is run unless the user also has a token or a certificate.

    Raises:
        LoginError: it is not usable; the message says which entry of which file, and why.
    """
    choice = choose_context(paths)
    credentials = _read_credentials(choice)
    cluster, owner = choice.cluster, choice.cluster_owner
    return ConnectionInfo(
        server=cluster["server"],
        insecure=cluster.get("insecure-skip-tls-verify"),
        default_namespace=choice.namespace,
        **choice.list_others(),
        **_read_pem(cluster, "certificate-authority", "ca", owner)[0],
        **credentials,
    )


def choose_context(paths: Sequence[Path]) -> Choice:
    """Read and merge kubeconfig files, and check their current context; raise LoginError."""
    where = os.pathsep.join(str(path) for path in paths)
    configs = [config for config in map(_load, paths) if config is not None]
    if not configs:
        _refuse(f"There is no kubeconfig at {where}. Correct KUBECONFIG, or create the file.")
    choice = _select(configs, where)
    server, owner = choice.cluster.get("server"), choice.cluster_owner
    if not server:
        _refuse(f"{owner[0].upper()}{owner[1:]} has no server. Add its URL.")
    if problem := find_server_problem(server):
        _refuse(f"The server {quote_url(server)} of {owner} {problem}.")
    if proxy := choice.cluster.get("proxy-url"):
        check_proxy(proxy, f" of {owner}")
    if (plugin := choice.user.get("exec")) is not None:
        parse_plugin(plugin, owner=choice.user_owner, cluster={})
    return choice


class Choice(NamedTuple):
    """The cluster and the user of the current context, and their names for messages."""

    cluster: dict[str, Any]
    cluster_owner: str
    user: dict[str, Any]
    user_owner: str
    namespace: str | None

    def __repr__(self) -> str:
        return f"<Choice: {self.cluster_owner}, {self.user_owner}>"  # users have secrets

    def list_others(self) -> dict[str, Any]:
        """Return what client libraries leave out, as arguments of ConnectionInfo."""
        return {
            "proxy_url": self.cluster.get("proxy-url"),
            "tls_server_name": self.cluster.get("tls-server-name"),
            "headers": tuple(_build_impersonation(self.user)),
        }


def _build_impersonation(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers of a user who acts as another one (Kubernetes: "User impersonation")."""
    extra = {
        f"Extra-{quote(key, safe='')}": each
        for key, each in (user.get("as-user-extra") or {}).items()
    }
    named = {"User": [user.get("as")], "Uid": [user.get("as-uid")], "Group": user.get("as-groups")}
    for name, values in (named | extra).items():
        if not isinstance(values or [], list):
            _refuse(f"{name.removeprefix('Extra-')} in as-user-extra must be a list of strings.")
        yield from ((f"Impersonate-{name}", str(value)) for value in values or () if value)


def _load(path: Path) -> dict[str, Any] | None:
    """Load one file with its relative paths made absolute; None if there is no such file."""
    import yaml  # noqa: PLC0415 - takes time that not everybody needs to spend

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as exc:
        _refuse(f"The kubeconfig {path} cannot be read: {_explain(exc)}.")
    except (yaml.YAMLError, ValueError, RecursionError) as exc:  # ValueError: dates
        mark = getattr(exc, "problem_mark", None)  # other attributes quote the file
        place = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        _refuse(f"The kubeconfig {path} is not YAML{place}.")
    if config is None:
        return {}
    if not isinstance(config, dict):
        kind = type(config).__name__
        _refuse(f"The file {path} is not a kubeconfig: it must hold a mapping, got {kind}.")
    if not isinstance(config.get("current-context") or "", str):
        _refuse(f"The current-context in {path} must be a string.")
    try:
        for section, kind in _SECTIONS:
            for item in config.get(section) or ():
                values = item.get(kind) or {}
                _check_types({"name": item.get("name")}, f"one of the {section}", path)
                _check_types(values, f"the {kind} {item.get('name')!r}", path)
                _make_absolute(values, path.absolute().parent)
    except (AttributeError, TypeError):
        message = f"The file {path} is not a kubeconfig: the {section} must be a list of entries"
        _refuse(f"{message} with a name and a {kind}.")
    except RuntimeError as exc:
        _refuse(f"A path of the {section} in {path} cannot be found: {exc}")
    return cast("dict[str, Any]", config)


def _check_types(values: Mapping[str, Any], owner: str, path: Path) -> None:
    for type_, words, names in _TYPES:
        for name in names:
            value = values.get(name)
            if value is not None and not isinstance(value, type_):
                kind = type(value).__name__
                _refuse(f"The {name} of {owner} in {path} must be {words}, got {kind}.")
    if nested := values.get("auth-provider") or values.get("config"):
        _check_types(nested, owner, path)


def _make_absolute(values: dict[str, Any], folder: Path) -> None:
    for key in _FILE_KEYS:
        if values.get(key):
            values[key] = str(folder / Path(values[key]).expanduser())
    plugin = values.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command") or ""):
        plugin["command"] = str(folder / plugin["command"])  # plain names are found by PATH


def _select(configs: Iterable[Mapping[str, Any]], where: str) -> Choice:
    """Return the choice of the current context: the first file that sets a value wins."""
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
    return Choice(
        cluster=cluster,
        cluster_owner=f"the cluster {context['cluster']!r} in {where}",
        user=user,
        user_owner=f"the user {name!r} in {where}",
        namespace=context.get("namespace"),
    )


def _pick(known: Mapping[str, dict[str, Any]], kind: str, name: Any, where: str) -> dict[str, Any]:
    if name not in known:
        names = ", ".join(map(str, known)) or "none"
        is_context = kind == "context"
        source = "it is the current context" if is_context else "the current context names it"
        _refuse(f"There is no {kind} {name!r} in {where}, but {source}. Known: {names}.")
    return known[name]


def _read_credentials(choice: Choice) -> dict[str, Any]:
    """Return the credentials of the user, as arguments of ConnectionInfo."""
    user, owner = choice.user, choice.user_owner
    token = _read_token(user, owner)
    has_certificate = user.get("client-certificate") or user.get("client-certificate-data")
    if "exec" in user and not (token or has_certificate):
        cluster = dict(choice.cluster)
        if path := cluster.get("certificate-authority"):
            content = _read_bytes(path, "certificate-authority", choice.cluster_owner)
            cluster.setdefault("certificate-authority-data", base64.b64encode(content).decode())
        return parse_plugin(user["exec"], owner=owner, cluster=cluster).fetch()
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
    """Return a token: from a file, of the user, or the last stored one of an auth provider."""
    token = user.get("token")
    if path := user.get("tokenFile"):
        try:
            found = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as exc:
            if not token:
                place = quote_path(path)
                _refuse(f"The tokenFile {place} of {owner} cannot be read: {_explain(exc)}.")
        else:
            token = found or token
    provider = (user.get("auth-provider") or {}).get("config") or {}
    return token or provider.get("access-token")


def _read_pem(
    values: Mapping[str, Any], key: str, name: str, owner: str
) -> tuple[dict[str, Any], bytes]:
    """Return an argument of ConnectionInfo (the path or the data), and the content."""
    if data := values.get(f"{key}-data"):
        try:
            content = base64.b64decode(data)
        except ValueError as exc:
            _refuse(f"The {key}-data of {owner} is not base64: {exc}.")
        if _PEM_MARK not in content:
            _refuse(f"The {key}-data of {owner} is not PEM in base64. Use {key} for a path.")
        return {f"{name}_data": data}, content
    path = values.get(key)
    content = _read_bytes(path, key, owner) if path else b""
    if path and _PEM_MARK not in content:
        _refuse(f"The file {quote_path(path)}, the {key} of {owner}, is not PEM.")
    return {f"{name}_path": path}, content


def _read_bytes(path: str, key: str, owner: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as exc:
        place = quote_path(path)
        _refuse(f"The file {place}, the {key} of {owner}, cannot be read: {_explain(exc)}.")


def _explain(exc: OSError | ValueError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def _refuse(message: str) -> NoReturn:
    raise LoginError(message, kind=_KIND) from None  # the cause can quote the file
