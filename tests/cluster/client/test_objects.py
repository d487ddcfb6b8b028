"""The client of handlers: objects by the names of their kinds, against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Json, Kind, Objects, RunOperator
from tests.kit.rights import grant
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.objects import AsyncClient
from webop.settings.groups import NetworkingSettings
from webop.testing import LocalCluster

MAPS = {"apiVersion": "v1", "kind": "ConfigMap"}


def build_map(name: str, namespace: str | None = None, **data: str) -> Json:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {**MAPS, "metadata": metadata, "data": data}


def build_account(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}


@pytest.fixture
def own(client: Client) -> AsyncClient:
    return AsyncClient(client)


@pytest.fixture
def here(webop_namespace: str) -> str:
    return webop_namespace


@pytest.fixture
async def pauper(
    own: AsyncClient, webop_cluster: LocalCluster, webop_namespace: str
) -> AsyncIterator[AsyncClient]:
    """The same for an account that may do nothing; its token is created as a subresource."""
    await own.create(build_account("pauper"), namespace=webop_namespace)
    token = await own.create(
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        kind="serviceaccounts",
        name="pauper",
        subresource="token",
        namespace=webop_namespace,
    )
    info = webop.ConnectionInfo(
        server=webop_cluster.server, ca_data=webop_cluster.ca_data, token=token["status"]["token"]
    )
    async with Client(webop.Vault({"pauper": info}), NetworkingSettings()) as requests:
        yield AsyncClient(requests)


async def test_an_object_is_created_read_changed_and_deleted(own: AsyncClient, here: str) -> None:
    created = await own.create(build_map("one", a="1"), namespace=here)
    assert created["metadata"]["namespace"] == here
    assert "managedFields" not in created["metadata"]
    merged = await own.patch("configmaps", "one", {"data": {"b": "2"}}, namespace=here)
    assert merged["data"] == {"a": "1", "b": "2"}
    operations = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "remove", "path": "/data/a"},
    ]
    await own.patch("configmaps", "one", operations, namespace=here)
    with pytest.raises(webop.APIUnprocessableError):
        await own.patch("configmaps", "one", operations, namespace=here)
    assert (await own.get("configmaps", "one", namespace=here))["data"] == {"b": "2"}
    with pytest.raises(webop.APIConflictError, match=r"create configmaps.*409.*already exists"):
        await own.create(build_map("one", here))
    with pytest.raises(webop.APIConflictError, match=r"delete configmaps 'one'.*[Pp]recondition"):
        await own.delete("configmaps", "one", namespace=here, uid="another")
    uid = created["metadata"]["uid"]
    await own.delete("configmaps", "one", namespace=here, uid=uid, propagation="Background")
    await own.delete("configmaps", "one", namespace=here, missing_ok=True)
    with pytest.raises(webop.APINotFoundError, match=f"get configmaps 'one' in .*{here}.*404"):
        await own.get("configmaps", "one", namespace=here)
    with pytest.raises(webop.APINotFoundError):
        await own.delete("configmaps", "one", namespace=here)


async def test_lists_are_of_a_namespace_or_the_cluster_and_can_be_selected(
    own: AsyncClient, here: str
) -> None:
    for name, color in (("one", "red"), ("two", "blue"), ("three", "red")):
        body = build_map(name, here)
        body["metadata"]["labels"] = {"color": color, "test": here}
        await own.create(body)

    async def find(**options: Any) -> list[str]:
        found = await own.list("configmaps", **options)
        assert all(item["kind"] == "ConfigMap" for item in found)
        return sorted(item["metadata"]["name"] for item in found)

    assert await find(namespace=here, labels={"color": "red"}) == ["one", "three"]
    assert await find(labels=f"test={here},color in (blue)") == ["two"]
    assert await find(namespace=here, fields={"metadata.name": "two"}) == ["two"]
    assert {"one", "two", "three"} <= set(await find())
    assert await own.list("namespaces", fields=f"metadata.name={here}")


NAMES: list[Any] = [
    *("configmaps", "ConfigMap", "configmap", "cm", "configmaps.v1", "v1/configmaps"),
    *(("v1", "configmaps"), ("", "v1", "configmaps")),
]
CUSTOM: list[Any] = [
    *("widgets.tests.webop.dev", "tests.webop.dev/v1/widgets", "tests.webop.dev/widgets"),
    *(("tests.webop.dev", "v1", "widgets"), ("tests.webop.dev/v1", "Widget")),
    *("widgets.v1.tests.webop.dev", webop.Resource("tests.webop.dev", "v1", "widgets")),
]


async def test_kinds_have_the_same_names_as_in_decorators(
    own: AsyncClient, objects: Objects
) -> None:
    await own.create(build_map("one"), namespace=objects.namespace)
    for name in NAMES:
        found = await own.get(name, "one", namespace=objects.namespace)
        assert found["kind"] == "ConfigMap"
    await objects.create("one")
    for name in CUSTOM:
        found = await own.get(name, "one", namespace=objects.namespace)
        assert found["kind"] == "Widget"


@rows(
    ("kind", "message"),
    [
        (webop.EVERYTHING, "must|must be a string"),
        (("apps", webop.EVERYTHING), "one kind"),
        (lambda _: True, "must be a string"),
        ("a/b/c/d", "at most a group, a version and a name"),
        ("", "name of a resource must not be empty"),
        (["configmaps"], "must be a string"),
    ],
)
async def test_what_cannot_be_the_name_of_one_kind_is_refused(
    own: AsyncClient, kind: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        await own.get(kind, "one", namespace="default")


async def test_an_object_in_no_namespace_is_refused_if_its_kind_needs_one(
    own: AsyncClient,
) -> None:
    with pytest.raises(ValueError, match=r"configmaps.v1 one is in a namespace: .*namespace="):
        await own.get("configmaps", "one")
    with pytest.raises(ValueError, match=r"configmaps.v1 is in a namespace"):
        await own.create(build_map("one"))
    with pytest.raises(TypeError, match="apiVersion and kind"):
        await own.create({"metadata": {"name": "one"}}, namespace="default")


@rows("name", ["", None, ".", "..", "a/b", "one%2f..", "x/status"])
async def test_names_that_lead_to_another_path_are_refused(
    own: AsyncClient, here: str, name: Any
) -> None:
    await own.apply(build_map("kept"), namespace=here)
    attempts = [
        own.get("configmaps", name, namespace=here),
        own.patch("configmaps", name, {"data": {}}, namespace=here),
        own.delete("configmaps", name, namespace=here),  # of all of them, if it were sent
        own.wait_gone("configmaps", name, namespace=here),
    ]
    if name is not None:
        attempts.append(own.get("configmaps", "kept", namespace=name))
        attempts.append(own.delete("configmaps", "kept", namespace=name))
    for attempt in attempts:
        with pytest.raises(ValueError, match="is not a valid name or namespace for configmaps"):
            await attempt
    assert await own.get("configmaps", "kept", namespace=here)


async def test_kinds_are_found_as_soon_as_they_are_in_the_cluster_and_several_are_told_apart(
    client: Client, own: AsyncClient, here: str
) -> None:
    sprocket = "sprockets"
    with pytest.raises(webop.APINotFoundError, match="There is no kind sprockets in the cluster"):
        await own.list(sprocket)
    with pytest.raises(webop.APINotFoundError, match=r"Did you mean configmaps\.v1\?"):
        await own.list("configmapps")
    kinds = [Kind(f"{name}.webop.test", sprocket, "Sprocket") for name in ("one", "two")]
    try:
        await define(client, kinds[0])
        assert await own.list(sprocket, namespace=here) == []
        await define(client, kinds[1])
        newcomer = AsyncClient(client)
        with pytest.raises(webop.ConfigurationError, match=r"ambiguous.*v1.one.webop.*v1.two"):
            await newcomer.list(sprocket)
        assert await newcomer.list("sprockets.two.webop.test") == []
    finally:
        for kind in kinds:
            await kind.undefine(client)
    # What is remembered of a kind that is gone is forgotten with the first refusal.
    assert "There is no kind" in await get_refusal(own, sprocket)


async def get_refusal(client: AsyncClient, kind: str) -> str:
    """Ask for objects of a kind until it is unknown; return the last refusal."""

    async def look() -> str:
        try:
            await client.list(kind, namespace="default")
        except webop.APINotFoundError as exc:
            return str(exc)
        return ""

    return str(await eventually(look, check=lambda refusal: "There is no kind" in refusal))


async def define(client: Client, kind: Kind) -> None:
    """Define a kind, and wait until it is in the discovery, which follows with some delay."""
    await kind.define(client)
    await eventually(lambda: discover(client, {kind.group}), check=lambda found: found.resources)


async def test_applying_keeps_what_others_have_set_and_says_whose_fields_are_in_conflict(
    own: AsyncClient, here: str
) -> None:
    await own.apply(build_map("one", here, ours="1", shared="1"))
    await own.apply(build_map("one", here, theirs="1"), field_manager="others")
    applied = await own.apply(build_map("one", here, ours="2", shared="1"))
    assert applied["data"] == {"ours": "2", "shared": "1", "theirs": "1"}
    with pytest.raises(webop.APIConflictError) as caught:
        await own.apply(build_map("one", here, shared="3"), field_manager="others")
    text = str(caught.value)
    assert "patch configmaps 'one'" in text
    assert 'conflict with "webop"' in text
    assert ".data.shared" in text
    assert "or take them over with force=True." in text
    taken = await own.apply(build_map("one", here, shared="3"), field_manager="others", force=True)
    assert taken["data"] == {"ours": "2", "shared": "3"}  # what is applied no more is removed
    with pytest.raises(ValueError, match=r"metadata\.name"):
        await own.apply({**MAPS, "data": {}}, namespace=here)


async def test_replacing_removes_what_is_left_out_and_refuses_what_has_changed_since(
    own: AsyncClient, here: str
) -> None:
    await own.create(build_map("one", a="1"), namespace=here)
    read = await own.get("configmaps", "one", namespace=here)
    replaced = await own.replace({**read, "data": {"b": "2"}})
    assert replaced["data"] == {"b": "2"}
    whole = await own.get("configmaps", "one", namespace=here, managed_fields=True)
    assert {one["manager"] for one in whole["metadata"]["managedFields"]} == {"webop"}
    again = await own.replace({**replaced, "data": {"c": "3"}})
    with pytest.raises(webop.APIConflictError, match=r"update configmaps 'one'.*has been modified"):
        await own.replace({**replaced, "data": {}})
    await own.delete("configmaps", "one", namespace=here)
    with pytest.raises(webop.APIStatusError, match="update configmaps 'one'"):
        await own.replace(again)
    # What was not read cannot be replaced: API servers would overwrite what others have changed.
    for missing in ("name", "resourceVersion"):
        metadata = {key: value for key, value in again["metadata"].items() if key != missing}
        with pytest.raises(ValueError, match=r"read the object with get\(\), change it"):
            await own.replace({**again, "metadata": metadata})


async def test_subresources_are_read_and_patched(
    client: Client, gadgets: Kind, own: AsyncClient, here: str
) -> None:
    await Objects(client, gadgets, here).create("one", {"a": 1})
    patch = {"spec": {"a": 2}, "status": {"phase": "Done"}}
    patched = await own.patch("gadgets", "one", patch, namespace=here, subresource="status")
    assert (patched["spec"], patched["status"]) == ({"a": 1}, {"phase": "Done"})
    read = await own.get("gadgets", "one", namespace=here, subresource="status")
    assert read["status"] == {"phase": "Done"}


async def test_what_is_not_permitted_says_what_to_grant_also_for_the_owner_of_a_child(
    pauper: AsyncClient, client: Client, own: AsyncClient, here: str
) -> None:
    child = build_map("child", here)
    with pytest.raises(webop.APIForbiddenError) as caught:
        await pauper.create(child)
    assert "Grant the verb 'create' on 'configmaps' of the API group ''" in str(caught.value)
    with pytest.raises(webop.APIForbiddenError, match="Grant the verb 'list' on 'configmaps'"):
        await pauper.wait_for("configmaps", "one", "Ready", namespace=here)

    # The API server answers 403 also if only the right to block an owner is missing.
    account = f"system:serviceaccount:{here}:pauper"
    await grant(client, account, "configmaps", "create", here)
    owner = await own.create(build_account("owner"), namespace=here)
    webop.append_owner_reference(child, owner=owner)

    async def create() -> str:
        with pytest.raises(webop.APIForbiddenError) as caught:
            await pauper.create(child)
        return str(caught.value)

    text = await eventually(create, check=lambda text: "blockOwnerDeletion" in text)
    assert "Grant the verb 'update' on the subresource 'finalizers' of the owner's kind" in text
    assert "Grant the verb 'create'" not in text


async def test_conditions_are_waited_for_from_before_the_object_is_there_until_it_is_gone(
    own: AsyncClient, objects: Objects
) -> None:
    client, here = own, objects.namespace
    ready, failed, changed = [
        asyncio.create_task(client.wait_for("widgets", "one", condition, namespace=here))
        for condition in ("Ready", "Ready=False", lambda obj: obj["spec"].get("a") == 1)
    ]
    await objects.create("one", {"a": 0})
    for status, waiting in (("False", failed), ("True", ready)):
        assert not waiting.done()
        conditions = [{"type": "Ready", "status": status, "reason": "Test"}]
        await objects.patch("one", {"status": {"conditions": conditions}})
        assert (await waiting)["status"]["conditions"] == conditions
    await objects.patch("one", {"spec": {"a": 1}})
    assert (await changed)["spec"] == {"a": 1}
    going = asyncio.create_task(client.wait_gone("widgets", "one", namespace=here))
    await objects.delete("one")
    await going
    await client.wait_gone("widgets", "one", namespace=here, timeout=5)


async def test_what_does_not_come_true_in_time_says_how_it_was(
    own: AsyncClient, objects: Objects
) -> None:
    client, here = own, objects.namespace
    with pytest.raises(webop.APITimeoutError, match=r"'one'.* is not Ready after 0.2 s: the obj"):
        await client.wait_for("widgets", "one", "Ready", namespace=here, timeout=0.2)
    await objects.create("one")
    condition = {"type": "Ready", "status": "False", "reason": "Slow", "message": "Pulling."}
    await objects.patch("one", {"status": {"conditions": [condition]}})
    with pytest.raises(webop.APITimeoutError, match=r"condition is False \(Slow: Pulling\.\)"):
        await client.wait_for("widgets", "one", "Ready", namespace=here, timeout=0.2)
    ahead = {**condition, "status": "True", "observedGeneration": 0}
    await objects.patch("one", {"status": {"conditions": [ahead]}})
    with pytest.raises(TimeoutError, match="True, for an older generation"):
        await client.wait_for("widgets", "one", "Ready", namespace=here, timeout=0.2)
    with pytest.raises(webop.APITimeoutError, match=r"is not gone after 0\.2 s"):
        await client.wait_gone("widgets", "one", namespace=here, timeout=0.2)
    with pytest.raises(KeyError, match="mistake"):
        await client.wait_for("widgets", "one", lambda obj: obj["mistake"], namespace=here)

    async def is_there(_: Any) -> bool:
        return False

    with pytest.raises(TypeError, match="must not be an async function"):
        await client.wait_for("widgets", "one", is_there, namespace=here)


async def test_all_kinds_of_handlers_have_a_client_in_the_loop_or_in_threads(
    run_operator: RunOperator, objects: Objects, info: Any
) -> None:
    here, seen = objects.namespace, dict[str, str]()

    def declare(name: str, decorator: Any) -> None:
        async def use(client: webop.AsyncClient, **_: Any) -> None:
            found = await client.get("namespaces", here)
            assert webop.client.current() is client
            seen[name] = found["kind"]

        def block(client: webop.SyncClient, **_: Any) -> None:
            assert webop.client.current().sync.get("namespaces", here) == (
                client.get("namespaces", here)
            )
            seen[f"sync {name}"] = client.get("namespaces", here)["kind"]

        decorator(id=name)(use)
        decorator(id=f"sync {name}")(block)

    def on(decorator: Any, **options: Any) -> Any:
        return lambda **more: decorator("widgets", **options, **more)

    for name, decorator in {
        "startup": webop.on.startup,
        "cleanup": webop.on.cleanup,
        "create": on(webop.on.create),
        "event": on(webop.on.event),
        "timer": on(webop.timer, interval=60),
        "daemon": on(webop.daemon),
    }.items():
        declare(name, decorator)

    @webop.index("widgets")
    async def indexed(client: webop.AsyncClient, name: str, **_: Any) -> Json:
        seen["index"] = (await client.get("namespaces", here))["kind"]
        return {name: 1}

    async with run_operator():
        assert set(seen) == {"startup", "sync startup"}
        await objects.make("one")
        names = ("create", "event", "timer", "daemon")
        expected = {*names, *(f"sync {name}" for name in names), "index"}
        await eventually(lambda: expected <= seen.keys(), f"all of {expected} (so far: {seen})")
        assert "cleanup" not in seen
    assert {"cleanup", "sync cleanup"} <= seen.keys()
    assert set(seen.values()) == {"Namespace"}


async def test_probes_of_an_app_have_the_client_of_its_operator(
    info: webop.ConnectionInfo, here: str
) -> None:
    @webop.on.probe()
    async def phase(client: webop.AsyncClient, **_: Any) -> Any:
        return (await client.get("namespaces", here))["status"]["phase"]

    @webop.on.probe()
    def kind(client: webop.SyncClient, **_: Any) -> Any:
        return client.get("namespaces", here)["kind"]

    app = webop.create_app(vault=webop.Vault({"test": info}), clusterwide=True)
    transport = httpx.ASGITransport(app=app)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        answer = await asyncio.create_task(http.get("/healthz"))
    assert sorted(answer.json().values()) == ["Active", "Namespace"]


async def test_the_sync_client_is_refused_in_the_loop_that_it_would_block(
    own: AsyncClient,
) -> None:
    own.enter()
    with pytest.raises(RuntimeError, match="await the methods of the argument"):
        own.sync.get("namespaces", "default")
    found = await asyncio.to_thread(own.sync.get, "namespaces", "default")
    assert found["kind"] == "Namespace"


def test_outside_of_operators_there_is_no_client_but_that_of_a_script(
    webop_kubeconfig: Any, here: str
) -> None:
    with pytest.raises(LookupError, match=r"no client here.*webop\.client\.connect\(\)"):
        webop.client.current()

    async def find() -> list[Json]:
        return await webop.client.current().list("namespaces")

    async def main() -> None:
        async with webop.client.connect(field_manager="script") as client:
            assert isinstance(client, webop.AsyncClient)
            assert here in {item["metadata"]["name"] for item in await find()}
            await client.apply(build_map("one", here, a="1"))
            with pytest.raises(webop.APIConflictError, match='conflict with "script"'):
                await client.apply(build_map("one", here, a="2"), field_manager="other")
        with pytest.raises(LookupError):
            webop.client.current()

    asyncio.run(main())
