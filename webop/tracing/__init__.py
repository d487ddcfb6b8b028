"""Spans of OpenTelemetry around reviews, handling cycles, calls of handlers, and requests.

There are some only if the user has configured a tracer provider by the end of the startup. Who has
none pays a call and a comparison for each of them: the API package is not even imported.

Spans never have values of objects: no messages of errors, no queries, no bodies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple, TypeVarTuple

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext as SpanContext

    from webop.tracing.spans import Span as Span
    from webop.tracing.spans import Tracing

Ts = TypeVarTuple("Ts")

NOT_TRACED = nullcontext()
_tracing: Tracing | None = None


class Description(NamedTuple):
    """What a span is about.

    Attributes:
        name: one of a few: no names of objects.
        attributes: those that are None are left out.
        kind: of :class:`opentelemetry.trace.SpanKind`, by name.
        parent: the span that it continues; by default the current one.
        headers: of the HTTP request that it answers: the caller's span may be there.
        is_inner: whether it is of interest only as a part of another span.
    """

    name: str
    attributes: Mapping[str, str | int | None]
    kind: str = "INTERNAL"
    parent: SpanContext | None = None
    headers: Mapping[str, str] | None = None
    is_inner: bool = False


def set_up_tracing() -> None:
    """Begin to trace if a tracer provider is configured by now; else stop."""
    global _tracing  # noqa: PLW0603 - as the provider, for all operators of the process
    _tracing = None
    if "opentelemetry.trace" in sys.modules:
        from webop.tracing.spans import find_tracing  # noqa: PLC0415 - its package is optional

        _tracing = find_tracing()


def open_span(describe: Callable[[*Ts], Description], *args: *Ts) -> Span | None:
    """Begin a span, which is the current one until it is closed; None if nothing is traced.

    It can be a block: ``with open_span(…) or NOT_TRACED as span``.

    Args:
        describe: says what it is about; called only if it is traced.
        args: what it is called with.
    """
    return None if _tracing is None else _tracing.begin(describe(*args))


def find_current_span() -> SpanContext | None:
    """Return what identifies the current span; None if there is none."""
    return None if _tracing is None else _tracing.find_current()


def find_trace_ids() -> dict[str, str]:
    """Return the ids of the current span for a log line; nothing if there is none."""
    return {} if _tracing is None else _tracing.find_ids()


def build_trace_headers() -> bytes:
    """Return the header lines that hand the current span on; nothing if there is none."""
    return b"" if _tracing is None else _tracing.build_headers()
