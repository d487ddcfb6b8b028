"""Print requests, responses of the API server, and results of checks."""

from __future__ import annotations

import http
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}


def write(text: str = "", colour: str | None = None) -> None:
    """Print a line at once; in colour on terminals only (https://no-color.org)."""
    if colour is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\033[{_COLOURS[colour]}m{text}\033[0m"
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("\N{CHECK MARK}", "[ok]").replace("\N{BALLOT X}", "[failed]")
        text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_command(command: str) -> None:
    """Print a request as the kubectl command that would send it."""
    write(f"   $ {command}", "bold")


def write_response(status: int, body: Mapping[str, Any], warnings: list[str]) -> None:
    """Print a response of the API server: warnings, status, message."""
    for warning in warnings:
        write(f"   Warning: {warning}", "yellow")
    phrase = f"{status} {http.HTTPStatus(status).phrase}"
    if body.get("kind") == "Status":
        write(f"   {phrase}: {body.get('message') or body.get('status')}")
    else:
        spec = json.dumps(body.get("spec"))
        write(f"   {phrase}: {body.get('kind')} {body['metadata']['name']}, spec: {spec}")


class Checks:
    """Compares values with expected ones, and collects what differs."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._step = 0
        self._title = ""

    def begin(self, title: str) -> None:
        """Print the title of the next step."""
        self._step, self._title = self._step + 1, title
        write()
        write(f"{self._step}. {title}", "bold")

    def check(self, what: str, actual: object, expected: object) -> None:
        """Compare two values; print a check mark, or what differs."""
        if actual == expected:
            write(f"   \N{CHECK MARK} {what}: {actual}", "green")
        else:
            failure = f"{what}: {actual}, expected {expected}"
            write(f"   \N{BALLOT X} {failure}", "red")
            self.failures.append(f"step {self._step} ({self._title}): {failure}")
