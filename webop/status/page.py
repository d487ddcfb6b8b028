"""The files of the page, and who may have them."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    "ui.html": "text/html; charset=utf-8",
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
}
_HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:\d*)?")

#: Nothing from elsewhere, nothing for elsewhere, nothing kept.
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
    """Tell whether only processes of this machine, or of this pod, reach an address or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Page:
    """Where the page is, and who may see it.

    Args:
        path: the path of the page; its files and the report are beside it.
        bound: the host that is listened on.

    Attributes:
        report_path: where the report is.
        files: the names of the files by their paths.
    """

    def __init__(self, path: str, bound: str) -> None:
        folder = path.rpartition("/")[0]
        self.report_path = f"{folder}/status.json"
        self.files = {**{f"{folder}/{name}": name for name in _TYPES}, path: "ui.html"}
        self._bound = bound.lower()

    def refuse(self, host: str) -> str:
        """Return why a request is refused; nothing if it is not.

        A page of somebody else can have its own name resolved to the loopback (DNS rebinding), and
        would be of the same origin then. Its name stays in the header.

        Args:
            host: the header of the request.
        """
        if not is_loopback(self._bound):
            return ""
        match = _HOST.fullmatch(host)
        name = match["host"].strip("[]").lower() if match else ""
        if name == self._bound or name in {"localhost", "127.0.0.1", "::1"}:
            return ""
        return "This page is only for http://localhost; it was asked for by another name.\n"

    def read(self, path: str) -> tuple[bytes, str]:
        """Return the content and the type of a file."""
        name = self.files[path]
        return (_FOLDER / name).read_bytes(), _TYPES[name]
