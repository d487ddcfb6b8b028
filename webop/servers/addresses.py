"""The addresses and URLs by which clients reach webhook servers."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote


def get_reachable_address(addr: str) -> str:
    """Return the address to connect to for a server that listens on an address.

    Clients cannot connect to catch-all addresses (0.0.0.0, ::); use the loopback for these.
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
    if port != (443 if scheme == "https" else 80):
        netloc = f"{netloc}:{port}"
    stripped = quote((path or "").strip("/"))
    return f"{scheme}://{netloc}/{stripped}" if stripped else f"{scheme}://{netloc}"
