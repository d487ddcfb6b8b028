"""The spans, with the API package of OpenTelemetry; imported only with a tracer provider."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from webop.aio.backoff import Once
from webop.version import __version__

if TYPE_CHECKING:
    from webop.telemetry.tracing import Description

logger = logging.getLogger(__name__)

_once = Once()
# The API server supports no other one; the user's propagators could also send baggage.
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
        """End the span; the previous span becomes current."""
        detach(self._token)
        try:
            self._span.end()
        except Exception:  # noqa: BLE001  a failed span must not fail the work in it
            _log_failure()

    def conclude(self, outcome: str, failure: BaseException | None = None) -> None:
        """Record the outcome; of an error, only its type."""
        self._is_concluded = True
        self._span.set_attribute("webop.outcome", outcome)
        if failure is not None:
            self._fail(_name(type(failure)))

    def record_response(self, status: int) -> None:
        """Record the status of the response to a request."""
        self._is_concluded = True
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._fail(str(status))

    def _fail(self, error: str) -> None:
        self._span.set_attribute("error.type", error)
        self._span.set_status(trace.StatusCode.ERROR)


class Tracing:
    """The tracer of webop, which starts spans and propagates them."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("webop", __version__)

    def begin(self, description: Description) -> Span | None:
        """Start a span; None if it is an inner one without a parent, or if that fails."""
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
        except Exception:  # noqa: BLE001  a failed span must not fail the work in it
            _log_failure()
            return None

    def _find_caller(self, headers: Mapping[str, str]) -> Context | None:
        """Return the context of the caller; None if the current span already continues it."""
        carrier = {key.lower(): headers[key] for key in headers if key.lower() in _FIELDS}
        if not carrier:
            return None
        context = _PROPAGATOR.extract(carrier)
        caller = trace.get_current_span(context).get_span_context()
        current = trace.get_current_span().get_span_context()
        return context if caller.is_valid and caller.trace_id != current.trace_id else None

    def find_current(self) -> trace.SpanContext | None:
        """See :func:`webop.telemetry.tracing.find_current_span`."""
        current = trace.get_current_span().get_span_context()
        return current if current.is_valid else None

    def find_ids(self) -> dict[str, str]:
        """See :func:`webop.telemetry.tracing.find_trace_ids`."""
        current = self.find_current()
        if current is None:
            return {}
        return {
            "trace_id": trace.format_trace_id(current.trace_id),
            "span_id": trace.format_span_id(current.span_id),
        }

    def build_headers(self) -> bytes:
        """See :func:`webop.telemetry.tracing.build_trace_headers`.

        The only flag is "sampled": Kubernetes 1.36 ignores headers with others, such as the
        "random" of newer SDKs (OpenTelemetry for Go, issue 7635).
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
    """Return the tracing of the user's tracer provider; None if there is none."""
    provider = trace.get_tracer_provider()
    idle = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    return None if isinstance(provider, idle) else Tracing(provider)


def _log_failure() -> None:
    logger.log(
        _once.choose_level("span"),
        "The sampler or a span processor of OpenTelemetry has failed. The span is lost.",
        exc_info=True,
    )


def _name(kind: type[BaseException]) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"
