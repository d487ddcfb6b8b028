"""Where webhook servers are reached: the addresses and the URLs that are told to their clients."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote

_DEFAULT_PORTS = {"http": 80, "https": 443}


def get_reachable_address(addr: str) -> str:
    """Return where to connect to for a server that listens on an address.

    One can listen on the catch-all addresses, but not connect to them.
    """
    if not addr:
        return "localhost"
    try:
        ip = ipaddress.ip_address(addr)
    except ValueError:
        return addr
    if not ip.is_unspecified:
        return addr
    return "127.0.0.1" if ip.version == 4 else "::1"


def build_url(scheme: str, host: str, port: int, path: str | None) -> str:
    """Build the URL of a server, in the shortest form."""
    netloc = f"[{host}]" if ":" in host else host
    if port != _DEFAULT_PORTS[scheme]:
        netloc = f"{netloc}:{port}"
    stripped = quote((path or "").strip("/"))
    return f"{scheme}://{netloc}/{stripped}" if stripped else f"{scheme}://{netloc}"
