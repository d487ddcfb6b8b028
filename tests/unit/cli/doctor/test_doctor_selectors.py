"""Which filters of handlers a label selector excludes."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from webop.cli.doctor.selector_checks import find_contradictions

PODS = webop.Resource("", "v1", "pods", kind="Pod", namespaced=True)


@pytest.mark.feature("FLT-28")
@pytest.mark.parametrize(
    ("labels", "selector", "excluded"),
    [
        ({"a": "b"}, "a=b", False),
        ({"a": "b"}, "a=c", True),
        ({"a": "b"}, "a!=b", True),
        ({"a": "b"}, "a in (b, c)", False),
        ({"a": "b"}, "a notin (b, c)", True),
        ({"a": "b"}, "!a", True),
        ({"a": "b"}, "a,x=y", False),
        ({"a": webop.PRESENT}, "!a", True),
        ({"a": webop.PRESENT}, "a!=b", False),
        ({"a": webop.ABSENT}, "a", True),
        ({"a": webop.ABSENT}, "a=b", True),
        ({"a": webop.ABSENT}, "a!=b", False),
        ({"a": lambda value, **_: value == "b"}, "a=c", False),
        ({"x": "y"}, "a=c", False),
        ({}, "a=c", False),
        ({"a": "b"}, "a>5", False),
        ({"a": "b"}, "", False),
    ],
)
def test_a_filter_that_contradicts_the_selector_is_found(
    registry: webop.OperatorRegistry, labels: Any, selector: str, *, excluded: bool
) -> None:
    @webop.on.create("pods", registry=registry, labels=labels, id="fn")
    def fn(**_: Any) -> None: ...

    handlers = registry.select_resource_handlers()
    found = list(find_contradictions(PODS, selector, handlers))
    assert [finding.level for finding in found] == ["warning"] * excluded
    assert all("'fn' is never called: labels={'a': " in finding.text for finding in found)
