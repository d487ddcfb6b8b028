"""Names of annotations, and the recognition of those of other operators."""

from __future__ import annotations

import re
from typing import Any

import pytest

from webop import AnnotationsProgressStorage, Body, Patch
from webop.objects.storage.keys import AnnotationNaming, find_managed_prefixes

DEFAULT = "kopf.zalando.org"
RULE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{,61}[A-Za-z0-9])?")


@pytest.mark.feature("CFG-67", "HND-06", "SUB-15")
@pytest.mark.parametrize(
    "key", ["lambda:/app/handlers.py:15", "_private", "outer.<locals>.<lambda>", "créer", "__"]
)
def test_names_that_kubernetes_would_refuse_are_made_acceptable(key: str) -> None:
    naming = AnnotationNaming(prefix=DEFAULT, v1=True)
    (name,) = naming.make_keys(key)

    assert name.startswith(f"{DEFAULT}/")
    assert RULE.fullmatch(name.removeprefix(f"{DEFAULT}/"))
    assert name != naming.make_keys(key + "x")[0]


def test_storages_of_ones_own_choose_the_names() -> None:
    class Storage(AnnotationsProgressStorage):
        def make_safe_key(self, key: str) -> str:
            return super().make_safe_key(key).lower()

        def mark_key(self, key: str, *, body: Any) -> str:
            return f"{key}-{body.meta.name}"

    storage, body, patch = Storage(prefix="p"), Body({"metadata": {"name": "ex"}}), Patch()
    storage.store(key="createFn", record={"retries": 1}, body=body, patch=patch)
    assert patch.meta.annotations["p/createfn-ex"] == '{"retries":1}'

    body = Body({"metadata": {"name": "ex", **patch["metadata"]}})
    assert storage.fetch(key="createFn", body=body) == {"retries": 1}
    storage.prefix = "q"
    assert storage.fetch(key="createFn", body=body) is None


@pytest.mark.feature("CFG-66", "D-61")
@pytest.mark.parametrize(
    ("annotations", "prefixes"),
    [
        ([], set()),
        (["note", "example.com/note"], set()),
        (["kopf.zalando.org/x"], {"kopf.zalando.org/"}),
        (["sub.kopf.zalando.org/x"], {"sub.kopf.zalando.org/"}),
        (["notkopf.zalando.org/x", "kopf.zalando.org.example.com/x", "kopf.zalando.org"], set()),
        (["op.example.com/kopf-managed", "op.example.com/x", "a/b"], {"op.example.com/"}),
        (["kopf-managed"], set()),
    ],
)
def test_annotations_of_operators_are_recognized(
    annotations: list[str], prefixes: set[str]
) -> None:
    assert set(find_managed_prefixes(annotations)) == prefixes


@pytest.mark.feature("D-28", "REF-52")
def test_a_prefix_is_needed() -> None:
    with pytest.raises(ValueError, match="needs a prefix"):
        AnnotationNaming(prefix="", v1=True)


@pytest.mark.feature("CFG-67")
def test_a_prefix_that_leaves_no_room_for_names_is_warned_about() -> None:
    AnnotationNaming(prefix="x" * 189, v1=True)
    with pytest.warns(UserWarning, match="can have 189 at most"):
        AnnotationNaming(prefix="x" * 190, v1=True)
