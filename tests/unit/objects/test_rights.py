"""Rights as texts."""

from __future__ import annotations

import pytest

from tests.kit.rows import rows
from webop.objects.rights import parse_right


@rows(
    ("text", "group", "name", "subresource"),
    [
        ("core/secrets:get", "", "secrets", ""),
        ("core.oam.dev/applications:get", "core.oam.dev", "applications", ""),
        ("score.example.com/games/status:get", "score.example.com", "games", "status"),
        ("pods/log:get", None, "pods", "log"),
        ("batch/jobs:get", "batch", "jobs", ""),
    ],
)
def test_a_right_is_for_the_group_that_it_names(
    text: str, group: str | None, name: str, subresource: str
) -> None:
    right = parse_right(text)
    assert (right.selector.group, right.selector.any_name) == (group, name)
    assert right.subresource == subresource


@rows("text", ["apps/v1/deployments:get", "v1/pods:get", "a.b/v1beta1/c:get"])
def test_a_right_with_a_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rights are for all versions: leave out 'v1"):
        parse_right(text)


@rows("text", [".:get", "-/..:get", "pods:", "pods:get,", "a/b/c/d:get"])
def test_what_is_no_right_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 'secrets:get,list'"):
        parse_right(text)
