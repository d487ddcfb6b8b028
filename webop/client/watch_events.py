"""Parsing of the lines of a watch into events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from webop.client.deep_json import decode
from webop.client.http.failed_requests import build_event_error
from webop.errors import WebopError

if TYPE_CHECKING:
    from webop.client.http.failed_requests import Attempt

BOOKMARK = "BOOKMARK"
CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
_DIGITS_LIMIT = 100  # of a version: Python refuses to parse thousands of digits
_QUOTE_LIMIT = 200  # characters of a broken line in the log

WatchType = Literal["ADDED", "MODIFIED", "DELETED"] | None
WatchEvent = tuple[WatchType, dict[str, Any]]


class BrokenStreamError(WebopError):
    """The server sent something other than a stream of events."""


async def parse_event(line: bytes, attempt: Attempt) -> tuple[Any, dict[str, Any], str]:
    """Return the type, the object and the resource version (empty if absent) of a line.

    Kubernetes API concepts: "Efficient detection of changes". Of future versions, it may be
    something else than an event or a bookmark.
    """
    try:
        data = await decode(line, lambda: attempt)
        kind, raw = data["type"], data["object"]
        if kind == "ERROR":
            raise build_event_error(attempt, raw)
        metadata = raw["metadata"]
        version = metadata.get("resourceVersion") or ""
        if kind in CHANGES:
            metadata["name"]  # it must exist
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        quote = repr(line[:_QUOTE_LIMIT].decode("utf-8", "replace"))
        quote += "..." if len(line) > _QUOTE_LIMIT else ""
        message = f"Cannot {attempt}: the server sent something other than an event: {quote}"
        raise BrokenStreamError(message) from exc
    return kind, raw, version


def parse_number(version: str | None) -> int:
    """Return a version as a number (comparable since Kubernetes 1.35); 0 if it is not one."""
    if not version or len(version) > _DIGITS_LIMIT or not version.isdecimal():
        return 0
    return int(version)


def get_uid(raw: dict[str, Any]) -> str:
    """Return the identity of an object; objects of aggregated APIs can lack a uid."""
    metadata = raw["metadata"]
    uid: str | None = metadata.get("uid")
    return uid or f"{metadata.get('namespace', '')}/{metadata['name']}"


def parse_version(raw: dict[str, Any]) -> int:
    """Return the resource version as a number: they can be compared since Kubernetes 1.35."""
    return parse_number(raw.get("metadata", {}).get("resourceVersion"))
