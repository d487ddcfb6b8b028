"""The names of the metrics follow the rules that ``promtool check metrics`` has, and more."""

from __future__ import annotations

import re

from tests.kit.rows import rows
from webop.monitoring.metrics import DEFINITIONS, Definition

_TYPE_WORDS = {"counter", "gauge", "histogram", "summary"}
_OTHER_UNITS = {"milliseconds", "ms", "minutes", "hours", "sec", "s", "kb", "mb", "percent"}
_RESERVED = {"le", "quantile", "job", "instance", "namespace", "pod", "container"}


def find_flaws(definition: Definition) -> list[str]:
    """Return what Prometheus' own check, or a user, would complain of."""
    name, kind, labels, text, _ = definition
    words = name.split("_")
    has_odd_label = any(not re.fullmatch(r"[a-z][a-z_]*", label) for label in labels)
    flaws = {
        "not in snake case": not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name),
        "_total is for counters only": (words[-1] == "total") != (kind == "counter"),
        "the suffix belongs to histograms": words[-1] in {"bucket", "count", "sum", "created"},
        "no unit": kind == "histogram" and words[-1] != "seconds",
        "its type is in its name": _TYPE_WORDS & {*words},
        "not a base unit": _OTHER_UNITS & {*words},
        "the text is not a sentence in one line": not text.endswith(".") or "\n" in text,
        "a label that Prometheus or the scrape sets": _RESERVED & {*labels} or has_odd_label,
        "a foreign prefix": not name.startswith(("webop_", "rest_client_", "leader_election_")),
    }
    return [flaw for flaw, is_found in flaws.items() if is_found]


@rows("definition", DEFINITIONS)
def test_a_metric_is_named_as_prometheus_wants_it(definition: Definition) -> None:
    assert find_flaws(definition) == []
