"""Read the head of a review's request: its path, its content type, its headers, its time-out.

API servers add the ``timeoutSeconds`` of the webhook to its URL, in the syntax of Go's
``time.Duration`` (Kubernetes, "Dynamic Admission Control", "Timeouts"). Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import parse_qs

from webop.errors import ReviewError

_JSON_TYPE = re.compile(r"application/(json|[a-z0-9!#$&^_.-]+\+json|x-www-form-urlencoded)")
_CHARSET = re.compile(r'charset\s*=\s*"?([^";\s]*)"?')
_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,  # the micro sign, which Go writes
    "\u03bcs": 1e-6,  # the Greek letter, which Go reads, too
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_MAX_TEXT = 32  # characters of a duration
_MAX_QUERY = 1024  # bytes; API servers send a timeout and nothing else
_MAX_TIMEOUT = 30.0  # seconds; the longest ``timeoutSeconds`` of a webhook
_MIN_MARGIN, _MAX_MARGIN = 0.05, 1.0  # seconds for sending the response


def normalize_path(path: str | None) -> str:
    """Return a root path in the form "/a/b"; "" for none."""
    stripped = (path or "").strip("/")
    return f"/{stripped}" if stripped else ""


@functools.lru_cache(maxsize=64)  # clients send a few different ones
def check_content_type(value: bytes) -> None:
    """Check the Content-Type of a review: JSON in UTF-8, or the one of ``curl -d``.

    Raises:
        ReviewError: it is something else (415).
    """
    text = value.decode("latin-1").strip().lower()
    kind, _, parameters = text.partition(";")
    if kind and not _JSON_TYPE.fullmatch(kind.strip()):
        reason = f"Send reviews as application/json, not as {kind.strip()!r}."
        raise ReviewError(reason, status=415)
    charset = _CHARSET.search(parameters)
    if charset is not None and charset[1] not in ("utf-8", "utf8"):
        raise ReviewError(f"Send reviews in UTF-8, not in {charset[1]!r}.", status=415)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration in Go's syntax, such as "10s", "1m30s", "1.5s".

    Raises:
        ValueError: it is not a positive duration, or has more than 32 characters.
    """
    seconds, end = 0.0, 0
    while end < len(text) <= _MAX_TEXT and (part := _PART.match(text, end)):
        seconds += float(part[1]) * _UNITS[part[2]]
        end = part.end()
    if end < len(text) or seconds <= 0:
        raise ValueError(f"not a duration such as 10s or 1m30s: {text[:_MAX_TEXT]!r}")
    return seconds


@functools.lru_cache(maxsize=64)  # API servers send few different ones
def read_timeout(query: bytes) -> float | None:
    """Return how many seconds the client waits, from the query of its URL; None if absent.

    It is at most 30 seconds, as in Kubernetes.

    Raises:
        ReviewError: the query has a ``timeout`` that is not a duration, or is too long (414).
    """
    if len(query) > _MAX_QUERY:
        raise ReviewError(f"The query is longer than {_MAX_QUERY} bytes.", status=414)
    values = parse_qs(query.decode("utf-8", "replace"), keep_blank_values=True).get("timeout")
    if not values:
        return None
    try:
        return min(parse_duration(values[0]), _MAX_TIMEOUT)
    except ValueError as error:
        raise ReviewError(f"The timeout= in the URL is {error}.") from None


@functools.lru_cache(maxsize=64)
def compute_budget(timeout: float) -> float:
    """Return after how many seconds the response must be sent, given the client's timeout."""
    margin = min(max(timeout / 10, _MIN_MARGIN), _MAX_MARGIN)
    return max(timeout - margin, timeout / 2)


class RequestHeaders(Mapping[str, str]):
    """A read-only mapping of header names in their usual spelling ("Content-Type") to values.

    Names are not case-sensitive. Values of a repeated header are joined (RFC 9110, 5.3). The
    headers are decoded at the first access, as few handlers use them.
    """

    __slots__ = ("_decoded", "_raw")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = raw
        self._decoded: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._values[name.title()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    @property
    def _values(self) -> dict[str, str]:
        if self._decoded is None:
            values: dict[str, str] = {}
            for raw_name, raw_value in self._raw:
                name, value = _spell(raw_name), raw_value.decode("latin-1")
                values[name] = f"{values[name]}, {value}" if name in values else value
            self._decoded = values
        return self._decoded


@functools.lru_cache(maxsize=256)
def _spell(name: bytes) -> str:
    return name.decode("latin-1").title()
