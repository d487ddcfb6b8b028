"""Spans of OpenTelemetry around reviews, handling cycles, calls of handlers, and requests.

Spans exist only if the user has configured a tracer provider by the end of the startup. Without
one, each costs a call and a comparison, and the API package is not even imported.

Spans never contain values of objects: no messages of errors, no queries, no bodies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple, TypeVarTuple

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext as SpanContext  # noqa: PLC0414  for the reactor

    from webop.telemetry.spans import Span, Tracing

Ts = TypeVarTuple("Ts")

NOT_TRACED = nullcontext()
_tracing: Tracing | None = None


class Description(NamedTuple):
    """The description of a span.

    Attributes:
        name: one of a few: no names of objects.
        attributes: the attributes; None values are omitted.
        kind: the name of a :class:`opentelemetry.trace.SpanKind`.
        parent: the parent span; by default the current one.
        headers: those of the HTTP request, which can contain the caller's span.
        is_inner: whether to create the span only inside another one.
    """

    name: str
    attributes: Mapping[str, str | int | None]
    kind: str = "INTERNAL"
    parent: SpanContext | None = None
    headers: Mapping[str, str] | None = None
    is_inner: bool = False


def set_up_tracing() -> None:
    """Start tracing if a tracer provider is configured by now; else stop it."""
    global _tracing  # noqa: PLW0603 - as the provider, for all operators of the process
    _tracing = None
    if "opentelemetry.trace" in sys.modules:
        from webop.telemetry.spans import find_tracing  # noqa: PLC0415 - its package is optional

        _tracing = find_tracing()


def open_span(describe: Callable[[*Ts], Description], *args: *Ts) -> Span | None:
    """Start a span, which is the current one until it is closed; None without tracing.

    Use it as a block: ``with open_span(…) or NOT_TRACED as span``. The description is built only
    with tracing.
    """
    return None if _tracing is None else _tracing.begin(describe(*args))


def find_current_span() -> SpanContext | None:
    """Return the context of the current span; None if there is none."""
    return None if _tracing is None else _tracing.find_current()


def find_trace_ids() -> dict[str, str]:
    """Return the ids of the current span for a log line; nothing if there is none."""
    return {} if _tracing is None else _tracing.find_ids()


def build_trace_headers() -> bytes:
    """Return the header lines that propagate the current span; nothing if there is none."""
    return b"" if _tracing is None else _tracing.build_headers()
