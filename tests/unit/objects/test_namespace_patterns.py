"""Which namespaces are served: the table of the chapter "Scopes"."""

from __future__ import annotations

import re

import pytest

from tests.kit.rows import rows
from webop.objects.namespace_patterns import (
    NamespacePattern,
    matches_pattern,
)


@pytest.mark.feature("SCP-02", "SCP-03", "SCP-04", "SCP-05", "SCP-06", "SCP-07", "SCP-08")
@rows(
    ("pattern", "matching", "others"),
    [
        ("ns", ["ns"], ["ns1", "n", "xns"]),
        ("ns*", ["ns", "ns1", "ns-x"], ["n", "xns"]),
        ("ns?", ["ns1"], ["ns", "ns12"]),
        ("*", ["ns", "anything"], []),
        ("*-pr-*", ["a-pr-b", "-pr-"], ["pr", "a-pr"]),
        ("!ns", ["other", "ns1"], ["ns"]),
        ("!*-pr-*", ["myapp-live"], ["myapp-pr-1"]),
        ("!a*,!b*", ["c"], ["a1", "b1"]),
        ("a*,b*", ["a1"], ["b1", "c"]),  # the first one is decisive
        ("a*,!*z", ["ab"], ["az", "b"]),
        ("a*,!*z,abz", ["ab", "abz"], ["acz"]),
        (
            "myapp-*,!*-pr-*,*-pr-123",
            ["myapp-live", "myapp-pr-123"],
            ["myapp-pr-456", "otherapp-live", "otherapp-pr-123"],
        ),
        (" myapp-* , !*-pr-* ", ["myapp-live"], ["myapp-pr-456", " myapp-live"]),
        (re.compile(r"ns\d+"), ["ns1", "ns12"], ["ns", "ns1x", "xns1"]),
        (re.compile(r"a|ab"), ["a", "ab"], ["abc"]),
    ],
)
def test_patterns_match_names(
    pattern: NamespacePattern, matching: list[str], others: list[str]
) -> None:
    assert [name for name in matching if not matches_pattern(name, pattern)] == []
    assert [name for name in others if matches_pattern(name, pattern)] == []
