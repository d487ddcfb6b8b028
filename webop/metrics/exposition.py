"""A scrape: from the values of an operator to the text in the format that the client accepts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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

from webop.backoff import Once
from webop.counters import BOUNDS, Timings
from webop.metrics.definitions import DEFINITIONS, Definition, MetricType

if TYPE_CHECKING:
    from webop.running import Operator

logger = logging.getLogger(__name__)

_once = Once()
_BUCKETS = [*map(str, BOUNDS), "+Inf"]


class OperatorCollector:
    """The metrics of one operator, then those of the process in prometheus-client's own registry.

    The latter are what prometheus-client knows of the process, and what handlers have defined:
    ``prometheus_client.Counter("orders", "…")`` is all that a metric of the user's own needs.

    Args:
        operator: what is measured; None if there is none yet.
        with_others: whether the latter are wanted.
    """

    def __init__(self, operator: Operator | None, *, with_others: bool = True) -> None:
        self._operator = operator
        self._with_others = with_others

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; errors in those of others do not hide ours."""
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
        except Exception:  # noqa: BLE001 - of others; it is logged
            _complain("A collector in the registry of prometheus_client has failed.")


def expose(operator: Operator | None, accept: str) -> tuple[bytes, str]:
    """Return the metrics as text, and the type of the text.

    Args:
        operator: what is measured; None if there is none yet.
        accept: the header: OpenMetrics if it asks for that, else the text format of Prometheus.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # the version is not a number
        encode, content_type = choose_encoder("")
    try:
        return encode(OperatorCollector(operator)), content_type
    except Exception:  # noqa: BLE001 - of others; it is logged
        _complain("Metrics in the registry of prometheus_client are not valid.")
        return encode(OperatorCollector(operator, with_others=False)), content_type


def _complain(text: str) -> None:
    logger.log(_once.choose_level(text), text, exc_info=True)


def _build_family(definition: Definition, operator: Operator) -> Metric:
    name, kind, labels, text, read = definition
    values = read(operator)
    if kind is MetricType.HISTOGRAM:
        histogram = HistogramMetricFamily(name, text, labels=labels)
        rows = values.rows if isinstance(values, Timings) else {}
        for key, (*counts, total) in rows.items():
            buckets = list(zip(_BUCKETS, accumulate(counts), strict=True))
            histogram.add_metric(key, buckets, total)
        return histogram
    build = CounterMetricFamily if kind is MetricType.COUNTER else GaugeMetricFamily
    family = build(name, text, labels=labels)
    for key, value in values.items() if isinstance(values, Mapping) else ():
        family.add_metric(key, value)
    return family
