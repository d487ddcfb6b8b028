"""The JSON patches of webop, applied as API servers do: what tests see is what is stored."""

from __future__ import annotations

from webop.objects.patch import Patch
from webop.testing.apiserver.patches import apply_json_patch


def test_the_patches_of_handlers_give_what_handlers_mean() -> None:
    body = {"metadata": {"labels": {"a/b": "1", "c~d": "2"}}, "spec": {"gone": 1, "list": [1]}}
    patch = Patch({"metadata": {"labels": {"a/b": "3", "c~d": None}}, "spec": {"gone": None}})
    patch.spec["deep"] = {"x": {"y": 1}}
    patch.fns.append(lambda raw: raw["spec"]["list"].append(2))
    assert apply_json_patch(body, patch.as_json_patch(body)) == {
        "metadata": {"labels": {"a/b": "3"}},
        "spec": {"list": [1, 2], "deep": {"x": {"y": 1}}},
    }
    assert body["spec"] == {"gone": 1, "list": [1]}
