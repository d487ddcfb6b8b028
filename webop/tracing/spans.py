"""The spans, by the API package of OpenTelemetry: imported only if there is a tracer provider."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from webop.backoff import Once
from webop.tracing import Description
from webop.version import __version__

logger = logging.getLogger(__name__)

_once = Once()
# The API server knows no other; those of the user would take baggage as well.
_PROPAGATOR = TraceContextTextMapPropagator()
_FIELDS = _PROPAGATOR.fields


class Span:
    """A span that is the current one until it is closed, or until the end of a block."""

    __slots__ = ("_is_concluded", "_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._is_concluded = False
        self._token = attach(trace.set_span_in_context(span))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and not self._is_concluded:
            self._fail(_name(kind))
        self.close()

    def close(self) -> None:
        """End it; what was the current span before it is so again."""
        detach(self._token)
        try:
            self._span.end()
        except Exception:  # noqa: BLE001  it is not what the span is about
            _complain()

    def conclude(self, outcome: str, failure: BaseException | None = None) -> None:
        """Say what has come of it; of a failure, nothing but its type is told."""
        self._is_concluded = True
        self._span.set_attribute("webop.outcome", outcome)
        if failure is not None:
            self._fail(_name(type(failure)))

    def answer(self, status: int) -> None:
        """Say what the answer to a request was."""
        self._is_concluded = True
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._fail(str(status))

    def _fail(self, error: str) -> None:
        self._span.set_attribute("error.type", error)
        self._span.set_status(trace.StatusCode.ERROR)


class Tracing:
    """The tracer of webop, and what is done with its spans."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("webop", __version__)

    def begin(self, description: Description) -> Span | None:
        """Make a span; None if it would be of no interest, or cannot be made."""
        if description.is_inner and self.find_current() is None:
            return None
        context = None
        if description.parent is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(description.parent))
        elif description.headers:
            context = self._find_caller(description.headers)
        attributes = {k: v for k, v in description.attributes.items() if v is not None}
        kind = trace.SpanKind[description.kind]
        try:
            return Span(self._tracer.start_span(description.name, context, kind, attributes))
        except Exception:  # noqa: BLE001  it is not what the span is about
            _complain()
            return None

    def _find_caller(self, headers: Mapping[str, str]) -> Context | None:
        """Return the context of the caller; None if the current one continues it already."""
        carrier = {key.lower(): headers[key] for key in headers if key.lower() in _FIELDS}
        if not carrier:
            return None
        context = _PROPAGATOR.extract(carrier)
        caller = trace.get_current_span(context).get_span_context()
        current = trace.get_current_span().get_span_context()
        return context if caller.is_valid and caller.trace_id != current.trace_id else None

    def find_current(self) -> trace.SpanContext | None:
        """See :func:`webop.tracing.find_current_span`."""
        current = trace.get_current_span().get_span_context()
        return current if current.is_valid else None

    def find_ids(self) -> dict[str, str]:
        """See :func:`webop.tracing.find_trace_ids`."""
        current = self.find_current()
        if current is None:
            return {}
        return {
            "trace_id": trace.format_trace_id(current.trace_id),
            "span_id": trace.format_span_id(current.span_id),
        }

    def build_headers(self) -> bytes:
        """See :func:`webop.tracing.build_trace_headers`.

        Of the flags, only "sampled" is sent. Kubernetes 1.36 ignores headers with any other, such
        as the "random" of newer SDKs (OpenTelemetry for Go, issue 7635).
        """
        current = self.find_current()
        if current is None:
            return b""
        is_sampled = int(current.trace_flags.sampled)
        ids = "-".join(self.find_ids().values())
        lines = f"traceparent: 00-{ids}-{is_sampled:02x}\r\n"
        if current.trace_state:
            lines += f"tracestate: {current.trace_state.to_header()}\r\n"
        return lines.encode("ascii")


def find_tracing() -> Tracing | None:
    """Return what makes spans; None if the user has configured no tracer provider."""
    provider = trace.get_tracer_provider()
    idle = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    return None if isinstance(provider, idle) else Tracing(provider)


def _complain() -> None:
    """Log why there is no span; what it is about must go on, and be done once only."""
    logger.log(
        _once.choose_level("span"),
        "The sampler or a span processor of OpenTelemetry has failed. The span is lost.",
        exc_info=True,
    )


def _name(kind: type[BaseException]) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"
