"""How the demo talks: what is asked, what the API server answers, whether it is as it should be."""

from __future__ import annotations

import http
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}


def say(text: str = "", colour: str | None = None) -> None:
    """Print a line at once; in colour on terminals only (and see https://no-color.org)."""
    if colour is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\033[{_COLOURS[colour]}m{text}\033[0m"
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("\N{CHECK MARK}", "[ok]").replace("\N{BALLOT X}", "[differs]")
        text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_command(command: str) -> None:
    """Print what is asked, as one would type it."""
    say(f"   $ {command}", "bold")


def say_answer(status: int, body: Mapping[str, Any], warnings: list[str]) -> None:
    """Print an answer of the API server as it came: warnings, status, message."""
    for warning in warnings:
        say(f"   Warning: {warning}", "yellow")
    phrase = f"{status} {http.HTTPStatus(status).phrase}"
    if body.get("kind") == "Status":
        say(f"   {phrase}: {body.get('message') or body.get('status')}")
    else:
        spec = json.dumps(body.get("spec"))
        say(f"   {phrase}: {body.get('kind')} {body['metadata']['name']}, spec: {spec}")


class Verdicts:
    """What has come out as it should, and what has not."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self._step = 0
        self._title = ""

    def begin(self, title: str) -> None:
        """Begin with the next step of the story."""
        self._step, self._title = self._step + 1, title
        say()
        say(f"{self._step}. {title}", "bold")

    def judge(self, what: str, actual: object, wanted: object) -> None:
        """Compare, and print a check mark or what differs."""
        if actual == wanted:
            say(f"   \N{CHECK MARK} {what}: {actual}", "green")
        else:
            difference = f"{what}: {actual}, not {wanted}"
            say(f"   \N{BALLOT X} {difference}", "red")
            self.differences.append(f"step {self._step} ({self._title}): {difference}")
