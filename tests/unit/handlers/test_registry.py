"""Which handlers are called for which causes, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.causes import build_body, build_change, select_ids
from tests.kit.rows import rows
from webop.handlers.registry import ResourceHandlers

SPEC = {"a": 1}
OLD = build_body(SPEC)
CHANGED = build_body({"a": 2})
DELETED = build_body(SPEC, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})


@pytest.fixture
def everything(registry: webop.OperatorRegistry) -> webop.OperatorRegistry:
    """One handler of each kind of changes, in this order."""
    on = webop.on
    on.create("kex", id="create")(lambda **_: None)
    on.update("kex", id="update")(lambda **_: None)
    on.delete("kex", id="delete")(lambda **_: None)
    on.delete("kex", id="optional", optional=True)(lambda **_: None)
    on.resume("kex", id="resume")(lambda **_: None)
    on.resume("kex", id="deleted", deleted=True)(lambda **_: None)
    on.field("kex", id="field", field="spec")(lambda **_: None)
    return registry


@pytest.mark.feature("HND-15", "HND-16", "HND-17", "HND-20", "HND-21", "HND-22", "HND-23", "D-44")
@pytest.mark.feature("EVT-07", "EVT-08", "EVT-09")
@rows(
    ("new", "old", "initial", "expected"),
    [
        (OLD, None, False, ["create", "field/spec"]),
        (OLD, None, True, ["create", "resume", "deleted", "field/spec"]),
        (CHANGED, OLD, False, ["update", "field/spec"]),
        (CHANGED, OLD, True, ["update", "resume", "deleted", "field/spec"]),
        (OLD, OLD, True, ["resume", "deleted"]),
        (OLD, OLD, False, []),
        (DELETED, OLD, False, ["delete", "optional"]),
        (DELETED, OLD, True, ["delete", "optional", "deleted"]),
    ],
)
def test_causes_select_their_handlers(
    everything: webop.OperatorRegistry, new: Any, old: Any, initial: bool, expected: list[str]
) -> None:
    assert select_ids(everything, build_change(new, old, initial=initial)) == expected


@pytest.mark.feature("HND-08")
def test_one_function_with_two_fields_is_called_for_each(registry: webop.OperatorRegistry) -> None:
    @webop.on.field("kex", id="fn", field="spec.b")
    @webop.on.field("kex", id="fn", field="spec.a")
    def fn(**_: Any) -> None: ...

    both = build_change(build_body({"a": 1, "b": 1}), build_body({}))
    assert select_ids(registry, both) == ["fn/spec.a", "fn/spec.b"]
    one = build_change(build_body({"a": 1}), build_body({}))
    assert select_ids(registry, one) == ["fn/spec.a"]


@pytest.mark.feature("HND-07")
def test_two_functions_with_one_id_are_both_called(registry: webop.OperatorRegistry) -> None:
    webop.on.create("kex", id="fn")(lambda **_: None)
    webop.on.create("kex", id="fn")(lambda **_: None)
    assert select_ids(registry, build_change(OLD)) == ["fn", "fn"]


@pytest.mark.feature("HND-18", "HND-19", "DMN-24", "TMR-24", "TRB-06")
@rows(
    ("decorator", "options", "expected"),
    [
        (webop.on.delete, {}, True),
        (webop.on.delete, {"optional": True}, False),
        (webop.on.delete, {"labels": {"no": "match"}}, False),
        (webop.on.create, {}, False),
        (webop.on.resume, {"deleted": True}, False),
    ],
)
def test_only_deletion_handlers_need_the_finalizer(
    decorator: Any, options: Any, expected: bool
) -> None:
    registry = webop.OperatorRegistry()
    decorator("kex", id="fn", registry=registry, **options)(lambda **_: None)
    handlers = ResourceHandlers(registry.select_resource_handlers())
    assert handlers.needs_finalizer(build_change(OLD)) is expected


@pytest.mark.feature("HND-31")
def test_fields_of_handlers_are_visible_to_the_detection_of_changes(
    registry: webop.OperatorRegistry,
) -> None:
    webop.on.update("kex", id="1", field="status")(lambda **_: None)
    webop.on.field("kex", id="2", field="metadata.x")(lambda **_: None)
    webop.on.event("kex", id="3", field="status.e")(lambda **_: None)
    webop.daemon("kex", id="4", field="status.d")(lambda **_: None)
    webop.index("kex", id="5", field="status.i")(lambda **_: None)
    handlers = ResourceHandlers(registry.select_resource_handlers())
    fields = {("status",), ("metadata", "x"), ("status", "e"), ("status", "d")}
    assert handlers.extra_fields == fields


@pytest.mark.feature("HND-12", "EMB-11", "REF-49")
def test_handlers_go_to_the_default_registry_unless_another_is_given(
    default_registry: webop.OperatorRegistry,
) -> None:
    registry = webop.OperatorRegistry()
    webop.on.create("kex", id="default")(lambda **_: None)
    webop.on.create("kex", id="own", registry=registry)(lambda **_: None)
    webop.on.create("kex", id="none", registry=None)(lambda **_: None)
    assert webop.get_default_registry() is default_registry
    assert select_ids(default_registry, build_change(OLD)) == ["default", "none"]
    assert select_ids(registry, build_change(OLD)) == ["own"]
