"""The files of the page, and the check of who can read them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    "ui.html": "text/html; charset=utf-8",
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
}
_HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:\d*)?")

#: Load nothing from other origins, give nothing to them, cache nothing.
HEADERS = MappingProxyType(
    {
        "cache-control": "no-store",
        "content-security-policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'"
        ),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
)


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine or pod reach an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Page:
    """The paths of the page, and the check of requests for it.

    Args:
        path: the path of the page; its files and the report are in the same folder.
        bound: the host that the server listens on.
        build_report: returns the current report; with the name of an object, that of it.

    Attributes:
        report_path: the path of the report.
        files: the names of the files by their paths.
    """

    def __init__(
        self, path: str, bound: str, build_report: Callable[[str], Awaitable[dict[str, Any]]]
    ) -> None:
        folder = path.rpartition("/")[0]
        self.report_path = f"{folder}/status.json"
        self.files = {**{f"{folder}/{name}": name for name in _TYPES}, path: "ui.html"}
        self.build_report = build_report
        self._bound = bound.lower()

    def refuse(self, host: str) -> str:
        """Return why a request is refused; empty if it is not.

        A foreign page can let its host name resolve to the loopback address (DNS rebinding), and
        would then have the same origin. The Host header still has the foreign name.
        """
        if not is_loopback(self._bound):
            return ""
        match = _HOST.fullmatch(host)
        name = match["host"].strip("[]").lower() if match else ""
        if name == self._bound or name in {"localhost", "127.0.0.1", "::1"}:
            return ""
        return "Open this page as http://localhost: it refuses requests for other host names.\n"

    def read(self, path: str) -> tuple[bytes, str]:
        """Return the content and the type of a file."""
        name = self.files[path]
        return (_FOLDER / name).read_bytes(), _TYPES[name]
