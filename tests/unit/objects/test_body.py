"""Bodies of objects and their views."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from webop import Body


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
def test_metadata_has_its_version_and_finalizers_as_attributes() -> None:
    meta = Body(build_raw()).meta
    assert (meta.resource_version, meta.finalizers) == ("42", ["f"])
    assert meta.deletion_timestamp == "2021-01-01T00:00:00Z"


@pytest.mark.feature("KWA-08", "KWA-09")
@pytest.mark.parametrize("raw", [{}, {"metadata": None, "spec": "?"}])
def test_what_is_absent_is_empty_or_none(raw: Any) -> None:
    body = Body(raw)

    assert body.spec == body.status == body.meta == body.meta.labels == {}
    assert body.spec.get("x", "default") == "default"
    assert body.meta.name is body.meta.deletion_timestamp is None
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
def test_views_can_be_put_into_json() -> None:
    view = Body(build_raw()).spec
    assert json.loads(json.dumps(view, default=dict)) == {"x": 1}
    assert orjson.loads(orjson.dumps({"v": view}, default=dict)) == {"v": {"x": 1}}


def test_an_assignment_to_a_view_is_told_with_the_patch() -> None:
    body = Body({"metadata": {"labels": {}}, "spec": {}})
    views: dict[str, Any] = {
        "patch": body,
        "patch.spec": body.spec,
        "patch.status": body.status,
        "patch.metadata": body.meta,
        "patch.metadata.labels": body.meta.labels,
        "patch.metadata.annotations": body.meta.annotations,
    }
    for place, view in views.items():
        with pytest.raises(TypeError, match="does not support item assignment") as caught:
            view["a"] = "b"
        assert str(caught.value).endswith(f"Write {place}['a'] = … instead.")
        with pytest.raises(TypeError, match="does not support item deletion") as caught:
            del view["a"]
        assert str(caught.value).endswith(f"Write {place}['a'] = None instead.")
