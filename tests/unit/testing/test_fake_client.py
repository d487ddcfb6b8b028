"""The client of an API server in memory, in tests of users."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

import webop
from tests.kit.lamps import Lamp, build_lamp
from tests.kit.waiting import eventually
from webop.testing import FakeClient

MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "one", "namespace": "team"},
    "data": {"a": "1"},
}


def build_deployment(**spec: Any) -> dict[str, Any]:
    labels = {"app": "web"}
    pod = {"containers": [{"name": "web", "image": "web:1"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


async def test_sync_and_async_functions_see_the_same_objects() -> None:
    client = FakeClient(Lamp, build_lamp())
    waiting = asyncio.create_task(
        client.wait_for(Lamp, "one", "Ready", namespace="default", timeout=20)
    )
    await asyncio.sleep(0)

    def be_ready(sync: webop.SyncClient) -> None:
        lamp = sync.get(Lamp, "one", namespace="default")
        lamp.status.conditions.set("Ready", True, "Started")
        status = {"conditions": lamp.status.conditions.model_dump(mode="json")}
        patch = {"status": status}
        sync.patch(Lamp, "one", patch, namespace="default", subresource="status")

    await asyncio.to_thread(be_ready, client.sync)
    assert (await waiting).status.conditions


async def test_given_objects_keep_their_status() -> None:
    client = FakeClient(Lamp, build_lamp(phase="Running"))
    assert (await client.get(Lamp, "one", namespace="default")).status.phase == "Running"
    assert (await client.get("namespaces", "default"))["status"] == {"phase": "Active"}


async def test_files_are_given_by_their_paths(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n")
    client = FakeClient(file, namespace="team")
    assert await client.get("cm", "one", namespace="team")


async def test_kinds_of_kubernetes_are_there_with_their_schemas_and_defaults() -> None:
    client = FakeClient()
    created = await client.create(build_deployment(), namespace="default")
    assert created["metadata"]["generation"] == 1
    assert created["spec"]["strategy"]["type"] == "RollingUpdate"
    found = await client.apply(build_deployment(replicas=2), namespace="default", force=True)
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (2, 2)
    assert [one["metadata"]["name"] for one in await client.list("deploy")] == ["web"]
    with pytest.raises(webop.APIStatusError, match=r"spec\.replica: field not declared in schema"):
        await client.apply(build_deployment(replica=2), namespace="default")


async def test_clients_do_not_share_objects_and_uids_are_the_same_in_each_run() -> None:
    one, other = FakeClient(MAP), FakeClient(MAP)
    await one.delete("configmaps", "one", namespace="team")
    found = await other.get("configmaps", "one", namespace="team")
    again = await FakeClient(MAP).get("configmaps", "one", namespace="team")
    assert found["metadata"]["uid"] == again["metadata"]["uid"]


async def test_in_a_block_it_is_the_current_client() -> None:
    with FakeClient(MAP) as client:
        assert webop.client.current() is client
    with pytest.raises(LookupError):
        webop.client.current()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([build_lamp()], "There is no kind lamps.webop.dev/v1 Lamp"),
        ([MAP, MAP], 'cannot exist at the start: configmaps "one" already exists'),
        ([{"kind": "ConfigMap"}], "apiVersion"),
    ],
)
def test_what_cannot_exist_at_the_start_is_refused(given: list[Any], message: str) -> None:
    with pytest.raises(webop.ConfigurationError, match=message):
        FakeClient(*given)


async def test_the_namespace_of_given_objects_exists_without_any() -> None:
    client = FakeClient(namespace="team")
    assert await client.create({**MAP, "metadata": {"name": "two"}}, namespace="team")


async def test_an_object_that_does_not_fit_is_named() -> None:
    class Settings(pydantic.BaseModel):
        apiVersion: str = "v1"  # noqa: N815
        kind: str = "ConfigMap"
        data: dict[str, int]

    with pytest.raises(webop.MisfitError, match=r"^Settings team/one: data.a: .*integer"):
        await FakeClient(MAP).get(Settings, "one", namespace="team")


async def test_functions_of_a_patch_that_cannot_be_sent_are_refused_not_dropped() -> None:
    client, patch = FakeClient(), webop.Patch()
    patch.status.set_condition("Ready", status=True, reason="Done")
    with pytest.raises(TypeError, match="as_json_patch"):
        await client.patch("configmaps", "a", patch, namespace="default")


class RangeSpec(webop.Struct):
    low: Annotated[int, webop.CEL("self >= oldSelf", message="must not decrease")] = 0


@webop.resource("ranges.webop.dev", "v1")
class Range(webop.Model):
    spec: RangeSpec


class SortedSpec(webop.Struct):
    names: Annotated[list[str], webop.CEL("self.isSorted()"), pydantic.Field(max_length=9)] = []  # noqa: RUF012


@webop.resource("sorteds.webop.dev", "v1")
class Sorted(webop.Model):
    spec: SortedSpec


async def test_the_rules_of_a_kind_are_evaluated() -> None:
    metadata = webop.Metadata(name="one", namespace="team")
    client = FakeClient(Range, Range(metadata=metadata, spec=RangeSpec(low=1)))
    await client.patch(Range, "one", {"spec": {"low": 2}}, namespace="team")
    with pytest.raises(webop.APIUnprocessableError, match=r"spec\.low: must not decrease"):
        await client.patch(Range, "one", {"spec": {"low": 1}}, namespace="team")


def test_rules_that_cannot_be_evaluated_are_named() -> None:
    rule = r"Rules of sorteds\.sorteds\.webop\.dev are not evaluated: spec\.names: self\.isSorted"
    with pytest.warns(UserWarning, match=rule):
        FakeClient(Sorted)


POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-0", "namespace": "team"},
    "spec": {"containers": [{"name": "web", "image": "web:1"}]},
}


async def test_changes_are_seen_and_objects_are_replaced() -> None:
    client, seen = FakeClient(Lamp, build_lamp()), list[tuple[str, int]]()
    listed = asyncio.Event()

    async def follow() -> None:
        async for change in client.watch(Lamp, namespace="default", on_listed=listed.set):
            seen.append((change.type, change.object.spec.watts))

    task = asyncio.create_task(follow())
    await listed.wait()
    lamp = await client.get(Lamp, "one", namespace="default")
    lamp.spec.watts = 2
    replaced = await client.replace(lamp)
    assert replaced.spec.watts == 2
    with pytest.raises(webop.APIConflictError):
        await client.replace(lamp)
    await client.delete(Lamp, "one", namespace="default")
    await eventually(lambda: len(seen) == 3)
    assert seen == [("ADDED", 5), ("MODIFIED", 2), ("DELETED", 2)]
    task.cancel()


async def test_logs_have_the_lines_that_the_test_has_written() -> None:
    client = FakeClient(POD)
    assert await client.logs("web-0", namespace="team") == []
    client.write_log("web-0", "one\ntwo", namespace="team")
    client.write_log("web-0", "three\n", namespace="team")
    assert await client.logs("web-0", namespace="team") == ["one", "two", "three"]
    assert await client.logs("web-0", namespace="team", container="web", tail=2) == ["two", "three"]
    followed = [line async for line in client.logs("web-0", namespace="team", follow=True)]
    assert followed == ["one", "two", "three"]
    with pytest.raises(webop.APIStatusError, match="previous terminated container"):
        await client.logs("web-0", namespace="team", previous=True)
    client.write_log("web-0", "before", namespace="team", previous=True)
    assert await client.logs("web-0", namespace="team", previous=True) == ["before"]
    with pytest.raises(webop.APINotFoundError, match="absent"):
        await client.logs("absent", namespace="team")


async def test_the_container_of_a_log_is_named_if_there_are_several() -> None:
    containers = [{"name": name, "image": "web:1"} for name in ("a", "b")]
    client = FakeClient({**POD, "spec": {"containers": containers}})
    client.write_log("web-0", "hello", namespace="team", container="b")
    with pytest.raises(webop.APIStatusError, match=r"choose one of: \[a b\]"):
        await client.logs("web-0", namespace="team")
    assert await client.logs("web-0", namespace="team", container="b") == ["hello"]


def test_the_sync_client_returns_lists_and_has_no_watch() -> None:
    client = FakeClient(MAP, POD)
    client.write_log("web-0", "one\ntwo", namespace="team")
    sync = client.sync
    assert sync.logs("web-0", namespace="team", follow=True) == ["one", "two"]
    sync.patch("configmaps", "one", {"data": {"b": "1"}}, namespace="team")
    (found,) = sync.list("configmaps", namespace="team")
    assert found["data"] == {"a": "1", "b": "1"}
    assert sync.replace({**found, "data": {"b": "2"}})["data"] == {"b": "2"}
    assert not hasattr(sync, "watch")
