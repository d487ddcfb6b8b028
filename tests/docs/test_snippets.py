"""The Python of the documentation runs as it is printed, and means the same to the peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.pages import find_snippets
from tools.site.comparing import Difference, Report, compare, register

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

SNIPPETS = {snippet.name: snippet for snippet in find_snippets()}
STARTING = {name for name, snippet in SNIPPETS.items() if "with LocalCluster(" in snippet.code}
COMMON = {name: snippet.code for name, snippet in SNIPPETS.items() if snippet.is_common}


@pytest.fixture(scope="module")
def ours() -> Report:
    """What the snippets register."""
    return register({n: s.code for n, s in SNIPPETS.items() if n not in STARTING}, "webop")


@pytest.fixture(scope="module")
def differences(ours: Report) -> list[Difference]:
    theirs = register(COMMON, "kopf")
    return compare({name: ours[name] for name in COMMON}, theirs)


@pytest.mark.parametrize("name", sorted(SNIPPETS.keys() - STARTING))
def test_a_snippet_runs_as_it_is_printed(name: str, ours: Report) -> None:
    assert ours[name]["error"] is None


@pytest.mark.journey
@pytest.mark.parametrize("name", sorted(STARTING))
def test_a_snippet_starts_a_cluster_as_it_is_printed(
    name: str, webop_cluster: LocalCluster
) -> None:
    assert webop_cluster.is_ready()  # so the binaries are there
    assert register({name: SNIPPETS[name].code}, "webop")[name]["error"] is None


@pytest.mark.journey
@pytest.mark.parametrize("name", COMMON)
def test_a_snippet_registers_the_same_handlers_under_kopf(
    name: str, differences: list[Difference]
) -> None:
    assert [str(item) for item in differences if item.snippet == name] == []


def test_what_differs_is_told() -> None:
    code = "import webop\n\n@webop.timer('pods', interval=%s, id='%s')\ndef fn(**_): ...\n"
    one, other = (register({"x": code % pair}, "webop") for pair in ((1, "a"), (2, "a")))
    assert compare(one, one) == []
    assert [str(item) for item in compare(one, other)] == [
        "x: handlers/0/interval: webop 1, kopf 2"
    ]
    broken = register({"x": "import webop\nwebop.nothing"}, "webop")
    assert "AttributeError" in str(compare(broken, one)[0].ours)
