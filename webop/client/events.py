"""What a watch brings: the items that its consumer gets, and the lines that it parses them from.

Pure: no I/O. Used by :mod:`webop.client.watch`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from webop.client.failures import build_event_error
from webop.errors import WebopError

if TYPE_CHECKING:
    from webop.client.failures import Attempt

WatchType = Literal["ADDED", "MODIFIED", "DELETED"] | None
WatchEvent = tuple[WatchType, dict[str, Any]]

BOOKMARK = "BOOKMARK"
CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})

_END_ANNOTATION = "k8s.io/initial-events-end"

# Characters of a broken line that get into the logs.
_QUOTE_LIMIT = 200


@dataclasses.dataclass(frozen=True, slots=True)
class ListingStarted:
    """All existing objects follow, of type None. Forget the unfinished listing, if there is one."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListingFinished:
    """All existing objects have been yielded; others that were known before are gone."""

    resource_version: str


WatchItem = WatchEvent | ListingStarted | ListingFinished


class BrokenStreamError(WebopError):
    """The server has answered with something that is not a stream of events."""


class Line(NamedTuple):
    """One line of a stream: an event, a bookmark, or something of a future version.

    Attributes:
        kind: its type, such as "ADDED".
        raw: the object, or what a bookmark has in place of one.
        version: the resource version that has been reached by it; empty if it tells none.
    """

    kind: Any
    raw: dict[str, Any]
    version: str


def parse_line(line: bytes, attempt: Attempt) -> Line:
    """Parse a line of a watch (Kubernetes API concepts: "Efficient detection of changes").

    Raises:
        APIStatusError: it is an event of type ERROR.
        BrokenStreamError: it is not an event.
    """
    try:
        data = orjson.loads(line)
        kind, raw = data["type"], data["object"]
        if kind == "ERROR":
            raise build_event_error(attempt, raw)
        metadata = raw["metadata"]
        version = metadata.get("resourceVersion") or ""
        if kind in CHANGES:
            metadata["name"]  # it must be there
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        quote = repr(line[:_QUOTE_LIMIT].decode("utf-8", "replace"))
        quote += "..." if len(line) > _QUOTE_LIMIT else ""
        message = f"Cannot {attempt}: the server has sent no event, but {quote}"
        raise BrokenStreamError(message) from exc
    return Line(kind, raw, version)


def is_end_of_list(raw: dict[str, Any]) -> bool:
    """Tell whether a bookmark ends a streaming list (Kubernetes API concepts)."""
    annotations = raw["metadata"].get("annotations")
    return isinstance(annotations, dict) and annotations.get(_END_ANNOTATION) == "true"


def has_name(raw: Any) -> bool:
    """Tell whether this can be an object of a list."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    return isinstance(metadata, dict) and bool(metadata.get("name"))
