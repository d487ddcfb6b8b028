"""URLs, users and paths of credentials: their check, their encoding, and quotes without secrets."""

from __future__ import annotations

import base64
import os
import re
from urllib.parse import urlsplit

from webop.errors import LoginError

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_PATH_LIMIT = 256  # characters


def find_server_problem(server: object) -> str:
    """Return why something is not the URL of an API server; an empty string if it is one."""
    advice = "is not a URL such as https://host:6443"
    if not isinstance(server, str):
        return advice
    try:
        parts = urlsplit(server)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        parts.port  # noqa: B018 - it is parsed by being read
    except ValueError:  # its text can quote a password in place of the port
        return f"{advice}: its host or its port is invalid"
    return "" if is_usable else advice


def build_basic(user: str, password: str) -> str:
    """Return the value of an ``Authorization`` header for a user (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def check_proxy(proxy: object, owner: str = "") -> None:
    """Refuse what is not the URL of an HTTP proxy; ``owner`` is a text such as " of a cluster"."""
    if problem := find_server_problem(proxy):
        raise LoginError(
            f"The proxy {quote_url(proxy)}{owner} {problem}. Use an HTTP or HTTPS proxy; others, "
            "such as SOCKS, are not supported.",
            kind="The URL of the proxy is wrong.",
        ) from None


def quote_url(url: object) -> str:
    """Quote a URL, valid or not, for messages: without what can be a password."""
    if not isinstance(url, str):
        return f"({type(url).__name__})"
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    _, at, place = rest.rpartition("@")
    if not place.startswith("["):
        place = re.sub(r":(?!\d{1,5}(?:/|$))[^/]*", ":***", place)
    return repr(f"{scheme}{mark}{at and '***@'}{place.partition('?')[0]}")


def quote_path(path: AnyPath) -> str:
    """Quote a path for messages, unless it looks like a key or a token instead of a path."""
    text = os.fsdecode(path)
    return text if len(text) < _PATH_LIMIT and text.isprintable() else "(content instead of a path)"
