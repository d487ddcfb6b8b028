"""The names of the metrics follow the rules that ``promtool check metrics`` has, and more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.kit.rows import rows
from webop.monitoring.metrics import DEFINITIONS, Definition

_TYPE_WORDS = {"counter", "gauge", "histogram", "summary"}
_OTHER_UNITS = {"milliseconds", "ms", "minutes", "hours", "sec", "s", "kb", "mb", "percent"}
_RESERVED = {"le", "quantile", "job", "instance", "namespace", "pod", "container"}


def find_flaws(definition: Definition) -> Iterator[str]:
    """Yield what Prometheus' own check, or a user, would complain of."""
    name, kind, labels, text, _ = definition
    words = name.split("_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        yield "not in snake case"
    if (words[-1] == "total") != (kind == "counter"):
        yield "_total is for counters, and only for them"
    if words[-1] in {"bucket", "count", "sum", "created"}:
        yield "the suffix belongs to histograms"
    if kind == "histogram" and words[-1] != "seconds":
        yield "no unit"
    if _TYPE_WORDS & {*words}:
        yield "its type is in its name"
    if _OTHER_UNITS & {*words}:
        yield "not a base unit"
    if not text.endswith(".") or "\n" in text:
        yield "the text is not a sentence in one line"
    if _RESERVED & {*labels} or any(not re.fullmatch(r"[a-z][a-z_]*", label) for label in labels):
        yield "a label that Prometheus or the scrape sets"
    if not name.startswith(("webop_", "rest_client_", "leader_election_")):
        yield "a foreign prefix"


@rows("definition", DEFINITIONS)
def test_a_metric_is_named_as_prometheus_wants_it(definition: Definition) -> None:
    assert list(find_flaws(definition)) == []
