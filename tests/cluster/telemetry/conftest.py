"""A tracer provider for one test at a time, and the spans that it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.kit.pages import DOCS
from tests.kit.waiting import eventually
from webop.telemetry.tracing import set_up_tracing


@dataclass
class Spans:
    provider: TracerProvider
    _exporter: InMemorySpanExporter
    _patch: pytest.MonkeyPatch

    def configure(self) -> None:
        """Be what OpenTelemetry has for all: it takes only one provider in each process."""
        self._patch.setattr(trace, "_TRACER_PROVIDER", self.provider)

    def __iter__(self) -> Iterator[ReadableSpan]:
        return iter(self._exporter.get_finished_spans())

    @property
    def text(self) -> str:
        return "\n".join(span.to_json() for span in self)

    def list_undocumented(self) -> list[str]:
        """Return the attributes that users cannot read of."""
        page = (DOCS / "howto" / "tracing.md").read_text(encoding="utf-8")
        return [key for span in self for key in span.attributes or () if f"`{key}`" not in page]

    def select(self, name: str, **attributes: Any) -> list[ReadableSpan]:
        """Return those of a name and with some attributes; dots are underscores here."""
        return [
            span
            for span in self
            if span.name == name
            and all(read(span).get(key) == value for key, value in attributes.items())
        ]

    def find(self, name: str, **attributes: Any) -> ReadableSpan:
        found = self.select(name, **attributes)
        assert len(found) == 1, [span.name for span in self]
        return found[0]

    async def wait(self, name: str, count: int = 1, **attributes: Any) -> list[ReadableSpan]:
        await eventually(lambda: len(self.select(name, **attributes)) >= count, f"span {name}")
        return self.select(name, **attributes)


def read(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes; dots are underscores here."""
    return {key.replace(".", "_"): value for key, value in (span.attributes or {}).items()}


def get_id(span: ReadableSpan) -> int:
    number: int = span.context.span_id
    return number


def get_trace(span: ReadableSpan) -> int:
    number: int = span.context.trace_id
    return number


def get_parent(span: ReadableSpan) -> int | None:
    """Return the id of the span that it is a part of; None if there is none."""
    return None if span.parent is None else span.parent.span_id


def is_failed(span: ReadableSpan) -> bool:
    status: dict[str, Any] = json.loads(span.to_json())["status"]
    assert "description" not in status
    return bool(status["status_code"] == "ERROR")


@pytest.fixture
def idle_spans() -> Iterator[Spans]:
    """A provider that is not configured yet."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        yield Spans(provider, exporter, patch)
    set_up_tracing()


@pytest.fixture
def spans(idle_spans: Spans) -> Spans:
    idle_spans.configure()
    return idle_spans
