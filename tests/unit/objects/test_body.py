"""Bodies of objects and their views."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from webop import Body


@pytest.mark.feature("REF-80", "KWA-08", "KWA-18")
def test_metadata_has_its_version_and_finalizers_as_attributes() -> None:
    moment = "2021-01-01T00:00:00Z"
    raw: Any = {"resourceVersion": "42", "deletionTimestamp": moment, "finalizers": ["f"]}
    meta = Body({"metadata": raw}).meta
    assert (meta.resource_version, meta.finalizers) == ("42", ["f"])
    assert meta.deletion_timestamp == moment
    assert [*Body({}).meta.finalizers] == []
    odd: Any = {"metadata": None, "spec": "?"}
    assert Body(odd).spec == Body(odd).meta == Body(odd).meta.labels == {}


@pytest.mark.feature("KWA-07")
def test_views_can_be_put_into_json() -> None:
    view = Body({"spec": {"x": 1}}).spec
    assert json.loads(json.dumps(view, default=dict)) == {"x": 1}
    assert orjson.loads(orjson.dumps({"v": view}, default=dict)) == {"v": {"x": 1}}


@pytest.mark.feature("KWA-07", "KWA-21")
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
