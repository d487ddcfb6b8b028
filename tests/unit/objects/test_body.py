"""Bodies of objects and their views."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import orjson
import pytest

from webop.objects.body import Body


def build_raw(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kopf.dev/v1",
        "kind": "KopfExample",
        "metadata": {
            "name": "example",
            "namespace": "ns",
            "uid": "uid1",
            "labels": {"l": "v"},
            "annotations": {"a": "w"},
            "resourceVersion": "42",
            "creationTimestamp": "2020-12-31T23:59:59Z",
            "deletionTimestamp": "2021-01-01T00:00:00Z",
            "finalizers": ["f"],
        },
        "spec": {"x": 1},
        "status": {"y": 2},
        **changes,
    }


@pytest.mark.feature("REF-80", "KWA-08", "KWA-18")
def test_well_known_fields_of_metadata_are_attributes() -> None:
    meta = Body(build_raw()).meta

    assert meta.name == "example"
    assert meta.namespace == "ns"
    assert meta.uid == "uid1"
    assert meta.labels == {"l": "v"}
    assert meta.annotations["a"] == "w"
    assert meta.resource_version == "42"
    assert meta.creation_timestamp == "2020-12-31T23:59:59Z"
    assert meta.deletion_timestamp == "2021-01-01T00:00:00Z"
    assert meta.finalizers == ["f"]


@pytest.mark.feature("KWA-08", "KWA-09")
@pytest.mark.parametrize("raw", [{}, {"metadata": {}, "spec": {}}, {"metadata": None, "spec": "?"}])
def test_what_is_absent_is_empty_or_none(raw: Any) -> None:
    body = Body(raw)

    assert body.spec == {}
    assert body.status == {}
    assert body.meta == {}
    assert body.meta.labels == {}
    assert body.meta.annotations == {}
    assert not body.meta.labels
    assert "x" not in body.spec
    assert body.spec.get("x", "default") == "default"
    assert body.meta.name is None
    assert body.meta.namespace is None
    assert body.meta.uid is None
    assert body.meta.deletion_timestamp is None
    assert list(body.meta.finalizers) == []
    with pytest.raises(KeyError):
        body.spec["x"]


@pytest.mark.feature("DMN-25", "KWA-20")
def test_all_views_show_the_new_state_when_it_is_replaced() -> None:
    body = Body(build_raw())
    spec, status, meta = body.spec, body.status, body.meta
    labels, annotations = meta.labels, meta.annotations
    new = build_raw(
        spec={"x": 10}, status={}, metadata={"name": "n", "labels": {"l": "new"}, "annotations": {}}
    )

    body.replace(new)

    assert body.raw is new
    assert spec == {"x": 10}
    assert status == {}
    assert labels == {"l": "new"}
    assert annotations == {}
    assert meta.name == "n"


@pytest.mark.feature("KWA-07", "KWA-21")
@pytest.mark.parametrize("name", ["spec", "status", "metadata", "meta"])
def test_views_cannot_be_changed(name: str) -> None:
    body = Body(build_raw())
    view: Any = getattr(body, name)

    targets: list[Any] = [view, body, body.meta.labels, body.meta.annotations]
    for target in targets:
        with pytest.raises(TypeError):
            target["x"] = 1
        with pytest.raises(TypeError):
            del target["x"]
        assert not hasattr(target, "setdefault")
    with pytest.raises(AttributeError):
        setattr(body, name, {})
    with pytest.raises(AttributeError):
        view.whatever = 1
    assert body == build_raw()


@pytest.mark.feature("KWA-07")
def test_views_behave_like_dicts_where_they_are_read() -> None:
    body = Body(build_raw())

    for view, expected in (
        (body, build_raw()),
        (body.spec, {"x": 1}),
        (body.meta.labels, {"l": "v"}),
    ):
        assert view == expected
        assert expected == view
        assert view != {**expected, "other": 1}
        assert dict(view) == {**view} == expected
        assert repr(view) == repr(expected)
        assert list(view) == list(view.keys()) == list(expected)
        assert list(view.values()) == list(expected.values())
        assert list(view.items()) == list(expected.items())
        assert len(view) == len(expected)
        assert json.loads(json.dumps(view, default=dict)) == expected
        assert orjson.loads(orjson.dumps({"v": view}, default=dict)) == {"v": expected}
    assert body.spec == Body(build_raw()).spec
    assert body.spec != body.status
    assert body.spec != "text"


def test_a_body_goes_without_the_garbage_collector() -> None:
    class Watched(dict[str, Any]):
        """Plain dicts cannot be weakly referenced."""

    raw = Watched(build_raw())
    seen = weakref.ref(raw)
    gc.disable()
    try:
        body = Body(raw)
        assert body.meta.labels
        assert body.spec
        del raw, body
        assert seen() is None
    finally:
        gc.enable()
