"""A scrape: format the metrics of an operator as text, as the client accepts it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from webop.aio.backoff import Once
from webop.monitoring.metrics import DEFINITIONS, Definition
from webop.telemetry.counters import BOUNDS, Timings

if TYPE_CHECKING:
    from webop.runtime.operator import Operator

logger = logging.getLogger(__name__)

_once = Once()
_BUCKETS = [*map(str, BOUNDS), "+Inf"]


class OperatorCollector:
    """The metrics of one operator, then those in prometheus-client's own registry.

    The latter are metrics of the process, and those that users define:
    ``prometheus_client.Counter("orders", "…")`` is enough. ``with_others`` is whether to include
    them.
    """

    def __init__(self, operator: Operator | None, *, with_others: bool = True) -> None:
        self._operator = operator
        self._with_others = with_others

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; errors in foreign ones do not hide ours."""
        names = set()
        if self._operator is not None:
            for definition in DEFINITIONS:
                family = _build_family(definition, self._operator)
                names.add(family.name)
                yield family
        try:
            for family in REGISTRY.collect() if self._with_others else ():
                if family.name not in names:
                    yield family
        except Exception:  # noqa: BLE001 - in foreign code; it is logged
            _log_failure(
                "A collector in the registry of prometheus_client has failed. "
                "The metrics after it are missing."
            )


def choose_format(accept: str) -> str:
    """Return one of few Accept headers, so that clients can share what is built for them.

    It is OpenMetrics if the client accepts that, else the text format of Prometheus.
    """
    compact = accept.replace(" ", "").lower()
    kinds = ("application/openmetrics-text", "text/plain;version=1.")
    kind = next((kind for kind in kinds if kind in compact), None)
    if kind is None:
        return ""
    escaping = ";escaping=allow-utf-8" if "escaping=allow-utf-8" in compact else ""
    return f"{kind.partition(';')[0]};version=1.0.0{escaping}"


def expose(operator: Operator | None, accept: str) -> tuple[bytes, str]:
    """Return the metrics as text in the format from :func:`choose_format`, and its type."""
    encode, content_type = choose_encoder(accept)
    try:
        return encode(OperatorCollector(operator)), content_type
    except Exception:  # noqa: BLE001 - in foreign code; it is logged
        _log_failure(
            "Metrics in the registry of prometheus_client are not valid. "
            "Returning only those of webop."
        )
        return encode(OperatorCollector(operator, with_others=False)), content_type


def _log_failure(text: str) -> None:
    logger.log(_once.choose_level(text), text, exc_info=True)


def _build_family(definition: Definition, operator: Operator) -> Metric:
    name, kind, labels, text, read = definition
    values = read(operator)
    if isinstance(values, Timings):
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for key, (*counts, total) in values.rows.items():
            buckets = list(zip(_BUCKETS, accumulate(counts), strict=True))
            histogram.add_metric(key, buckets, total)
        return histogram
    build = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = build(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
