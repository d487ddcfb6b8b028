"""The client without a cluster: the same calls get the same results from a real API server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pydantic
import pytest

import webop
from webop.testing import FakeClient, LocalCluster

Json = dict[str, Any]


class Port(webop.Struct):
    name: str
    port: int = 80


class TankSpec(webop.Struct):
    size: int = pydantic.Field(ge=0)
    engine: str = "diesel"
    color: str | None = None
    ports: Annotated[list[Port], webop.ListKeys("name"), pydantic.Field(max_length=9)] = []  # noqa: RUF012
    tags: Annotated[list[str], webop.Unique(), pydantic.Field(max_length=9)] = []  # noqa: RUF012


class TankStatus(webop.Struct):
    phase: str | None = None


@webop.resource("fakes.webop.dev", "v1")
class Tank(webop.Model):
    spec: TankSpec
    status: TankStatus = TankStatus()


def build(name: str = "one", **spec: Any) -> Json:
    return {
        "apiVersion": "fakes.webop.dev/v1",
        "kind": "Tank",
        "metadata": {"name": name},
        "spec": spec,
    }


def build_deployment(**containers: str) -> Json:
    items = [{"name": name, "image": image} for name, image in containers.items()]
    labels = {"app": "web"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": items}},
        },
    }


@pytest.fixture(params=["fake", "real"])
async def client(
    request: pytest.FixtureRequest, webop_cluster: LocalCluster, webop_namespace: str
) -> AsyncIterator[webop.AsyncClient]:
    if request.param == "fake":
        namespace = {"apiVersion": "v1", "kind": "Namespace"}
        yield FakeClient(Tank, {**namespace, "metadata": {"name": webop_namespace}})
        return
    webop_cluster.apply(Tank)
    async with webop.client.connect() as client:
        yield client


class Place:
    """A namespace, and what is kept of objects: what both servers set alike."""

    def __init__(self, client: webop.AsyncClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def apply(self, body: Json, manager: str, **options: Any) -> Json:
        done = self.client.apply(body, namespace=self.namespace, field_manager=manager, **options)
        return self._clean(await done)

    async def create(self, body: Json) -> Json:
        return self._clean(await self.client.create(body, namespace=self.namespace))

    async def patch(self, body: Any, **options: Any) -> Json:
        done = self.client.patch(Tank, "one", body, namespace=self.namespace, **options)
        return self._clean(await done)

    async def get(self, kind: Any = "tanks.fakes.webop.dev", name: str = "one") -> Json:
        return self._clean(await self.client.get(kind, name, namespace=self.namespace))

    def _clean(self, obj: Any) -> Json:
        body = obj if isinstance(obj, dict) else obj.model_dump(mode="json", exclude_none=True)
        metadata = body["metadata"]
        kept = ("name", "labels", "annotations", "generation", "finalizers")
        return {**body, "metadata": {key: metadata[key] for key in kept if metadata.get(key)}}


@pytest.fixture
def place(client: webop.AsyncClient, webop_namespace: str) -> Place:
    return Place(client, webop_namespace)


async def test_models_are_taken_and_returned(client: webop.AsyncClient, place: Place) -> None:
    here = place.namespace
    tank = Tank(metadata=webop.Metadata(name="one", namespace=here), spec=TankSpec(size=1))
    created = await client.create(tank)
    assert isinstance(created, Tank)
    tank.spec.size = 9
    applied = await client.apply(tank, field_manager="tests", force=True)
    assert (applied.metadata.uid, applied.spec.size) == (created.metadata.uid, 9)


async def test_containers_of_deployments_are_merged(place: Place) -> None:
    await place.apply(build_deployment(web="web:1", log="log:1"), "one")
    made = await place.apply(build_deployment(side="side:1"), "two")
    names = [one["name"] for one in made["spec"]["template"]["spec"]["containers"]]
    assert sorted(names) == ["log", "side", "web"]
    made = await place.apply(build_deployment(web="web:2"), "one")
    found = {one["name"]: one["image"] for one in made["spec"]["template"]["spec"]["containers"]}
    assert found == {"web": "web:2", "side": "side:1"}


async def test_deletions_wait_for_finalizers_and_can_be_awaited(place: Place) -> None:
    body = build(size=1)
    body["metadata"]["finalizers"] = ["webop.dev/test"]
    await place.create(body)
    await place.client.delete(Tank, "one", namespace=place.namespace)
    assert (await place.get())["metadata"]["finalizers"]
    gone = asyncio.create_task(
        place.client.wait_gone(Tank, "one", namespace=place.namespace, timeout=20)
    )
    await asyncio.sleep(0.1)
    await place.patch({"metadata": {"finalizers": None}})
    await gone


# ---- random writes, to both


class Writes:
    """Random requests of several managers about one object."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def draw(self) -> tuple[str, Json, Json]:
        rng = self._rng
        body = {"apiVersion": "fakes.webop.dev/v1", "kind": "Tank"}
        manager = {"field_manager": rng.choice("pq")}
        what = rng.choices(["apply", "patch", "status"], [7, 2, 1])[0]
        if what == "patch":
            return what, {"spec": self._draw_spec()}, {}
        if what == "status":
            status = {"metadata": {"name": "one"}, "status": {"phase": rng.choice("AB")}}
            return what, body | status, {**manager, "subresource": "status"}
        forced = {"force": rng.random() < 0.3}
        whole = {"metadata": self._draw_metadata(), "spec": self._draw_spec()}
        return what, body | whole, manager | forced

    def _draw_metadata(self) -> Json:
        rng, metadata = self._rng, dict[str, Any](name="one")
        if rng.random() < 0.4:
            metadata["labels"] = {
                key: rng.choice("12") for key in rng.sample("ab", rng.randint(1, 2))
            }
        if rng.random() < 0.2:
            names = rng.sample("ab", rng.randint(1, 2))
            metadata["finalizers"] = [f"webop.dev/{name}" for name in names]
        return metadata

    def _draw_spec(self) -> Json:
        rng, spec = self._rng, dict[str, Any](size=self._rng.choice([1, 2]))
        for field in ("color", "engine"):
            if rng.random() < 0.3:
                spec[field] = rng.choice("xy")
        if rng.random() < 0.5:
            spec["ports"] = [
                {"name": name} | ({"port": rng.choice([1, 2])} if rng.random() < 0.6 else {})
                for name in rng.sample("abc", rng.randint(0, 3))
            ]
        if rng.random() < 0.5:
            spec["tags"] = rng.sample("abc", rng.randint(0, 3))
        if rng.random() < 0.1:
            del spec["size"]
        return spec


async def perform(place: Place, what: str, body: Json, options: Json) -> Any:
    """Return the object after a request, or the status and the fields of conflicts."""
    try:
        if what == "patch":
            return await place.patch(body)
        return await place.apply(body, options.pop("field_manager"), **options)
    except webop.APIError as exc:
        causes: Any = exc.details.get("causes", ()) if isinstance(exc, webop.APIStatusError) else ()
        conflicts = (one for one in causes if one["reason"] == "FieldManagerConflict")
        return getattr(exc, "status", 0), sorted(
            (one["field"], one["message"].partition(" using ")[0]) for one in conflicts
        )


async def test_random_applies_of_several_managers_are_alike_on_both(
    webop_cluster: LocalCluster, webop_kubeconfig: Any
) -> None:
    webop_cluster.apply(Tank)
    async with webop.client.connect() as real:
        for seed in range(12):
            namespace = webop_cluster.create_namespace()
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            places = [Place(client, namespace) for client in (real, FakeClient(Tank, body))]
            writes, story = Writes(seed), list[Any]()
            for _ in range(8):
                what, written, options = writes.draw()
                story.append((what, written, options))
                one, other = [
                    await perform(place, what, written, dict(options)) for place in places
                ]
                assert one == other, (seed, *story)
