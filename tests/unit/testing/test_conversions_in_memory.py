"""Conversion in the API server in memory, and by the functions of users in the fake client.

Most of the former is compared with a real API server (tools/simulation/conformance).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

import webop
from tests.kit.versioned_shops import (
    GROUP,
    NAME,
    NewSpec,
    OldSpec,
    ShopAlpha,
    ShopV1,
    ShopV2,
    declare,
)
from webop.models.crds import build_crds
from webop.testing import FakeClient
from webop.testing.apiserver import Cluster, Json, Request, Response

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INVALID, V1 = "invalid object", f"{GROUP}/v1"
PATCH = "application/merge-patch+json"
WEBHOOK = {
    "strategy": "Webhook",
    "webhook": {"clientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v1"]},
}


class World:
    """A server with the shops; v2 is stored.

    Attributes:
        asked: what the converter was called for: names and versions.
        change: what becomes of converted objects.
    """

    def __init__(self, conversion: Json | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.change: Callable[[Json], Any] = lambda _: None
        self.server = Cluster(lambda: datetime.now(UTC), random.Random(0), converter=self._convert)
        (crd,) = build_crds([ShopAlpha, ShopV1, ShopV2])
        crd["spec"]["conversion"] = conversion or WEBHOOK
        assert self.send("POST", CRDS, crd).status == 201

    def _convert(self, objects: list[Json], api_version: str) -> list[Json]:
        (raw,) = objects
        version = api_version.rpartition("/")[2]
        self.asked.append((raw["metadata"]["name"], version))
        spec = raw["spec"]
        if version == "v1":
            spec = {"address": spec["host"], "replicas": spec["count"]}
        else:
            spec = {"host": spec["address"], "count": spec["replicas"], "unknown": 1}
        found = {**raw, "apiVersion": api_version, "spec": spec}
        found["metadata"] = orjson.loads(orjson.dumps(raw["metadata"]))
        changed = self.change(found)
        return [found] if changed is None else changed

    def send(self, method: str, path: str, body: Any = None, form: str = PATCH) -> Response:
        content = None if body is None else orjson.dumps(body)
        headers = {"content-type": "application/json" if method == "POST" else form}
        return self.server.handle(Request(method, path, {}, headers, content))

    def create(self, version: str, name: str, **spec: Any) -> Response:
        head = {"apiVersion": f"{GROUP}/{version}", "kind": "Shop", "metadata": {"name": name}}
        return self.send("POST", locate(version), {**head, "spec": spec})

    @property
    def stored(self) -> Json:
        return self.server.get_objects(NAME)["default/one"]


def locate(version: str, name: str = "") -> str:
    path = f"/apis/{GROUP}/{version}/namespaces/default/shops"
    return f"{path}/{name}" if name else path


@pytest.mark.parametrize("conversion", [WEBHOOK, {"strategy": "None"}])
def test_nothing_is_converted_without_need(conversion: Json) -> None:
    world = World(conversion)
    world.create("v2", "one", host="a")
    assert world.send("PATCH", locate("v2", "one"), {"spec": {"count": 2}}).status == 200
    if conversion is not WEBHOOK:
        assert world.send("GET", locate("v1", "one")).body["apiVersion"] == f"{GROUP}/v1"
    assert world.asked == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: [], "returned 0 objects, expected 1"),
        (
            lambda raw: raw.update(kind="Other"),
            f"returned {INVALID} at index 0: invalid kind (expected Shop, received Other)",
        ),
        (
            lambda raw: raw.pop("metadata"),
            f"returned {INVALID}: must have the same name: one != ",
        ),
        (
            lambda raw: raw["metadata"].update(annotations={"a b": "c"}),
            "returned invalid metadata: metadata.annotations: Invalid value: 'a b': 'c'",
        ),
    ],
)
def test_what_converters_must_not_do_fails_the_request(
    change: Callable[[Json], Any], message: str
) -> None:
    world = World()
    world.create("v2", "one", host="a")
    world.change = lambda raw: [] if change(raw) == [] else None
    response = world.send("GET", locate("v1", "one"))
    assert response.status == 500
    assert response.body["message"] == f"conversion webhook for {GROUP}/v2, Kind=Shop {message}"
    assert world.send("GET", locate("v1")).status == 500


def test_objects_stay_in_the_former_storage_version_until_they_are_written() -> None:
    world = World()
    world.create("v2", "one", host="a")
    crd = orjson.loads(world.send("GET", f"{CRDS}/{NAME}").encode())
    for version in crd["spec"]["versions"]:
        version["storage"] = version["name"] == "v1"
    changed = {"spec": {"versions": crd["spec"]["versions"]}}
    crd = world.send("PATCH", f"{CRDS}/{NAME}", changed).body
    assert crd["status"]["storedVersions"] == ["v2", "v1"]
    assert world.send("GET", locate("v2", "one")).body == world.stored
    assert world.stored["apiVersion"] == f"{GROUP}/v2"
    before = world.stored["metadata"]
    assert world.send("PATCH", locate("v2", "one"), {}).status == 200
    assert world.stored["apiVersion"] == f"{GROUP}/v1"
    assert world.stored["metadata"]["resourceVersion"] != before["resourceVersion"]
    assert world.stored["metadata"]["generation"] == before["generation"]


# ---- the fake client


async def test_the_fake_client_converts_by_the_functions_of_the_default_registry() -> None:
    declare()
    given = ShopV1(metadata=webop.Metadata(name="one"), spec=OldSpec(address="a:81"))
    client = FakeClient(ShopV1, given)
    shop = await client.get(ShopV2, "one", namespace="default")
    assert shop.spec == NewSpec(host="a", port=81)
    await client.patch(ShopV2, "one", {"spec": {"port": 82}}, namespace="default")
    assert [each.spec.address for each in await client.list(ShopV1)] == ["a:82"]
    alpha = client.sync.get(ShopAlpha, "one", namespace="default")
    assert alpha.spec.url == "http://a:82"


async def test_the_fake_client_keeps_what_a_function_cannot_convert(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare()
    client = FakeClient(ShopV1)
    spec = OldSpec(address="a:b")
    made = ShopV1(metadata=webop.Metadata(name="one", namespace="default"), spec=spec)
    assert (await client.create(made)).spec == spec
    assert "Cannot convert Shop one from v1 to v2" in caplog.text
    shown = await client.get("shops.v2.versions.webop.dev", "one", namespace="default")
    assert "kept.webop.dev/v1" in shown["metadata"]["annotations"]


async def test_the_fake_client_does_not_convert_without_functions() -> None:
    client = FakeClient(ShopV1)
    crd = await client.get("customresourcedefinitions", NAME)
    assert crd["spec"]["conversion"] == {"strategy": "None"}
    converted = {**crd, "spec": {**crd["spec"], "conversion": WEBHOOK}}
    other = FakeClient(
        {key: converted[key] for key in ("apiVersion", "kind", "spec")}
        | {"metadata": {"name": NAME}}
    )
    made = ShopV1(
        metadata=webop.Metadata(name="one", namespace="default"), spec=OldSpec(address="a")
    )
    with pytest.raises(webop.APIError, match="no function converts it from v1 to v2"):
        await other.create(made)
