"""What is served: namespaces and kinds, as they come and go while the operator runs."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import webop
from tests.cluster.reactor.observations import Names
from tests.kit.http_relay import fail
from tests.kit.operators import (
    CRDS,
    Calls,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    operate,
)
from tests.kit.reviews import serve
from tests.kit.rights import grant, read_vault
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

USUAL = "list,watch,patch"
NAMESPACES = webop.Resource("", "v1", "namespaces", kind="Namespace", namespaced=False)


async def create_namespace(client: Client, name: str) -> None:
    await client.create(NAMESPACES, None, {"metadata": {"name": name}})


@pytest.mark.feature("FLT-25", "FLT-26", "FLT-28")
async def test_an_object_that_starts_to_match_is_a_creation_then(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.update("widgets", id="updated", labels={"mine": "yes"})(calls.noting("fn"))
    webop.on.create("widgets", id="created", labels={"mine": "yes"})(calls.noting("fn"))
    webop.on.delete("widgets", id="deleted", labels={"mine": "yes"})(do_nothing)
    webop.on.resume("widgets", id="resumed", labels={"mine": "yes"})(do_nothing)
    with caplog.at_level("DEBUG", "webop"):
        async with run_operator():
            await objects.create("one", {"a": 1})
            before = await objects.patch("one", {"spec": {"a": 2}})
            await objects.pass_fence()
            assert await objects.get("one") == before, "it costs no request"
            assert "/one" not in caplog.text
            assert "[" + objects.namespace not in caplog.text
            await objects.change("one", {"metadata": {"labels": {"mine": "yes"}}})
            await objects.pass_fence()
    assert [(call["reason"], call["old"]) for call in calls.of("one")] == [("create", None)]


@pytest.mark.feature("SCP-01", "SCP-02", "SCP-03", "SCP-04", "SCP-09", "SCP-11", "SCP-13")
async def test_namespaces_are_served_as_they_come_and_only_those_that_are_meant(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets", id="fn")
    async def fn(namespace: str, **kwargs: Any) -> None:
        calls.note(namespace.removeprefix(prefix), kwargs)

    client, prefix = objects.client, objects.namespace
    others = {
        suffix: Objects(client, objects.kind, f"{prefix}{suffix}")
        for suffix in ("-a", "-b", "-no-c", "-later")
    }
    for suffix in ("-a", "-b", "-no-c"):
        await create_namespace(client, f"{prefix}{suffix}")
    patterns = [f"{prefix}-*,!*-no-*", re.compile(f"{prefix}-x")]
    async with run_operator(namespaces=patterns):
        for suffix in ("-a", "-b", "-no-c"):
            await others[suffix].create(f"one{suffix}")
        await objects.create("elsewhere")
        await others["-a"].wait_handled("one-a")
        await others["-b"].wait_handled("one-b")
        await create_namespace(client, f"{prefix}-later")
        await others["-later"].create("one-later")
        await others["-later"].wait_handled("one-later")
        await others["-a"].pass_fence()
    names = {call["name"] for call in calls if not call["name"].startswith("fence")}
    assert names == {"one-a", "one-b", "one-later"}


@pytest.mark.feature("EMB-13", "SCP-15")
async def test_who_asks_for_no_namespaces_is_warned_and_gets_all_of_them(
    registry: webop.OperatorRegistry, info: ConnectionInfo, objects: Objects
) -> None:
    mine = {"of": objects.namespace}  # the objects of other tests are not for this operator
    webop.on.create("widgets", id="fn", labels=mine)(do_nothing)
    operator = operate(info, registry)
    with pytest.warns(FutureWarning, match="all of them") as warned:
        await operator.__aenter__()
    (warning,) = warned
    shown = warnings.formatwarning(
        warning.message, warning.category, warning.filename, warning.lineno
    )
    assert shown.count("\n") == 1
    try:
        await objects.make("one", labels=mine)
        later = Objects(objects.client, objects.kind, f"{objects.namespace}-later")
        await create_namespace(objects.client, later.namespace)
        await later.make("two", labels=mine)
    finally:
        await operator.__aexit__(None, None, None)


@pytest.mark.feature("SCP-09")
async def test_a_namespace_that_goes_away_is_not_served_any_more(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.create("widgets", id="fn")(do_nothing)
    index = Names("widgets")
    client, doomed = objects.client, f"{objects.namespace}-doomed"
    await create_namespace(client, doomed)
    await objects.create("kept")
    with caplog.at_level("INFO", "webop"):
        async with run_operator(namespaces=[objects.namespace, doomed]):
            await Objects(client, objects.kind, doomed).create("doomed")
            await eventually(lambda: index() == {"kept", "doomed"}, "both are indexed")
            await remove_namespace(client, doomed)
            text = "Stopped serving"
            await eventually(lambda: text in caplog.text, text)
            await eventually(lambda: index() == {"kept"}, "the other one is forgotten")
            await objects.pass_fence()


async def remove_namespace(client: Client, name: str) -> None:
    """Remove an empty namespace for good, which is the work of a controller otherwise."""
    await client.delete(NAMESPACES, None, name)
    body = await client.get(NAMESPACES, None, name)
    body["spec"]["finalizers"] = []
    await client.request("PUT", f"/api/v1/namespaces/{name}/finalize", body=body)


@pytest.fixture
def arrivals(client: Client, webop_namespace: str) -> Objects:
    """Objects of a kind that is not in the cluster yet."""
    kind = Kind(f"{webop_namespace}.observer.webop.dev", plural="arrivals", kind="Arrival")
    return Objects(client, kind, webop_namespace)


@pytest.mark.feature("RES-17", "RES-18")
async def test_a_kind_is_served_as_soon_as_it_appears_and_again_when_it_comes_back(
    run_operator: RunOperator,
    client: Client,
    arrivals: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    webop.on.create(arrivals.kind.crd_name, id="fn")(calls.noting("fn"))
    caplog.set_level("INFO", "webop")
    gone = "Stopped serving"
    async with run_operator():
        await eventually(lambda: "arrivals" in caplog.text, "the missing kind is told of")
        for count in (1, 2):
            await arrivals.kind.define(client)
            await arrivals.make("one", {"a": count})
            assert caplog.text.count("now. Handling it.") == count
            await arrivals.kind.undefine(client)
            await eventually(lambda count=count: caplog.text.count(gone) == count, gone)  # type: ignore[misc]
    assert [call["spec"]["a"] for call in calls.of("one")] == [1, 2]
    assert {r.levelname for r in caplog.records if "not in the cluster" in r.message} == {"WARNING"}


@pytest.mark.feature("RES-18", "RES-22")
async def test_versions_that_are_added_to_a_kind_are_served(
    run_operator: RunOperator, client: Client, arrivals: Objects
) -> None:
    served: set[str] = set()
    for version in ("v1", "v2", "v3"):

        @webop.on.create(arrivals.kind.group, version, arrivals.kind.plural, id=version)
        async def fn(resource: webop.Resource, **_: Any) -> None:
            served.add(resource.version)

        @webop.on.event(arrivals.kind.group, version, arrivals.kind.plural, id=version)
        async def event(resource: webop.Resource, **_: Any) -> None:
            served.add(resource.version)

    await arrivals.kind.define(client)
    async with run_operator():
        await arrivals.pass_fence()
        # One after another: the first could be found by chance, as the start takes its time.
        for version in ("v2", "v3"):
            crd = await client.get(CRDS, None, arrivals.kind.crd_name)
            versions = crd["spec"]["versions"]
            versions = [*versions, {**versions[0], "name": version, "storage": False}]
            patch = {"spec": {"versions": versions}}
            await client.patch(CRDS, None, arrivals.kind.crd_name, patch)
            await eventually(lambda version=version: version in served, version)  # type: ignore[misc]


@pytest.mark.feature("RES-14", "RES-16", "D-58")
async def test_an_ambiguous_name_is_told_of_and_is_not_served(
    run_operator: RunOperator,
    client: Client,
    arrivals: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    twin = Kind(f"twin.{arrivals.kind.group}", plural="arrivals", kind="Arrival")
    for kind in (arrivals.kind, twin):
        await kind.define(client)

    webop.on.create(arrivals.kind.crd_name, id="exact")(calls.noting("fn"))
    webop.on.create("arrivals", id="ambiguous")(calls.noting("fn"))
    async with run_operator():
        await arrivals.make("one")
        await arrivals.pass_fence()
    assert len(calls.of("one")) == 1
    (told,) = {r.message for r in caplog.records if "ambiguous" in r.message}
    assert arrivals.kind.group in told
    assert twin.group in told


@pytest.mark.feature("SCP-10", "SCP-11", "DEP-06", "DEP-07", "D-56")
async def test_without_permissions_for_namespaces_and_kinds_exact_names_are_served(
    run_operator: RunOperator,
    webop_cluster: LocalCluster,
    objects: Objects,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.create("widgets", id="created")
    @webop.on.delete("widgets", id="deleted")
    async def fn(**_: Any) -> str:
        return "done"

    user = f"user-of-{objects.namespace}"
    await grant(client, user, objects.kind.crd_name, USUAL, objects.namespace)
    vault, namespaces = read_vault(webop_cluster, user), [objects.namespace, "other-*"]
    async with run_operator(vault=vault, namespaces=namespaces):
        body = await objects.make("one")
        await objects.remove("one")
    assert body["status"] == {"created": "done"}
    for plural in ("namespaces", "customresourcedefinitions"):
        assert any("list" in r.message and plural in r.message for r in caplog.records)


async def test_a_permission_to_watch_namespaces_that_is_granted_later_is_noticed(
    run_operator: RunOperator, webop_cluster: LocalCluster, objects: Objects, client: Client
) -> None:
    webop.on.create("widgets", id="created")(do_nothing)
    user, later = f"user-of-{objects.namespace}", f"{objects.namespace}-later"
    await grant(client, user, objects.kind.crd_name, USUAL, objects.namespace)
    vault = read_vault(webop_cluster, user)
    others = Objects(client, objects.kind, later)
    await client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": later}})
    try:
        await grant(client, user, objects.kind.crd_name, USUAL, later)
        namespaces = [objects.namespace, f"{objects.namespace}-*"]
        async with run_operator(vault=vault, namespaces=namespaces):
            await objects.make("one")
            await others.create("two")
            await grant(client, user, "namespaces", "list,watch")
            await others.wait_handled("two")
    finally:
        await client.request("DELETE", f"/api/v1/namespaces/{later}")


@pytest.mark.feature("SCP-09", "SCP-10")
async def test_served_namespaces_stay_served_while_the_api_server_refuses_to_list_them(
    run_relayed: RunOperator, objects: Objects, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.create("widgets", id="created")(do_nothing)
    later = Objects(client, objects.kind, f"{objects.namespace}-later")
    refused: set[str] = set()

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        return fail(403) if request.url.path in refused else None

    caplog.set_level("INFO", "webop")
    async with run_relayed(meddle=meddle, namespaces=[f"{objects.namespace}*"]):
        await objects.make("one")
        refused.add(NAMESPACES.get_url())
        await create_namespace(client, later.namespace)
        names = objects.namespace
        text = f"webop may not list namespaces. Until it may, it serves only these: {names}."
        await eventually(lambda: text in caplog.messages, text)
        await objects.make("two")
        refused.clear()
        await later.make("three")
    assert caplog.messages.count(text) == 1
    assert "Stopped serving" not in caplog.text


@pytest.mark.feature("D-25", "D-56")
async def test_a_watch_that_is_not_permitted_is_told_with_the_verb_and_the_remedy(
    webop_cluster: LocalCluster, objects: Objects, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.create("widgets", id="fn")(do_nothing)
    user = f"nobody-in-{objects.namespace}"
    vault = read_vault(webop_cluster, user)
    async with serve(
        settings=build_settings(), vault=vault, namespaces=[objects.namespace]
    ) as site:
        await eventually(lambda: "Cannot list widgets" in caplog.text)
        assert (
            "the watch of widgets.v1.tests.webop.dev is not up" in (await site.get("/readyz")).text
        )
        await grant(client, user, objects.kind.crd_name, USUAL, objects.namespace)
        await objects.make("one")
        assert (await site.get("/readyz")).status_code == 200
    (told,) = {
        r.message.partition("; listing")[0]
        for r in caplog.records
        if "Cannot list widgets" in r.message
    }
    assert "HTTP 403" in told
    assert "Grant the verb 'list' on 'widgets' of the API group 'tests.webop.dev'" in told
    assert objects.namespace in told


CLUSTER_ROLES = webop.Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", kind="ClusterRole", namespaced=False
)


@pytest.mark.feature("RES-11", "RES-15", "RES-12")
async def test_everything_of_a_group_is_served(
    run_operator: RunOperator, objects: Objects, with_status: Objects
) -> None:
    seen: set[tuple[str, str]] = set()

    @webop.on.event(objects.kind.group, webop.EVERYTHING, id="fn")
    async def fn(resource: webop.Resource, name: str, **_: Any) -> None:
        seen.add((resource.plural, name))

    async with run_operator():
        await objects.create("one")
        await with_status.create("two")
        await eventually(lambda: {("widgets", "one"), ("gadgets", "two")} <= seen)


@pytest.mark.feature("RES-24")
async def test_kinds_can_be_chosen_by_a_function(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    def choose(resource: webop.Resource) -> bool:
        return resource.kind == "Widget"

    webop.on.create(choose, id="fn")(calls.noting("fn"))
    async with run_operator():
        await objects.make("one")
    assert len(calls.of("one")) == 1


@pytest.mark.feature("SCP-14", "RES-01", "KWA-08", "KWA-10")
async def test_kinds_of_the_cluster_are_served_whatever_the_namespaces_are(
    run_operator: RunOperator, client: Client, objects: Objects
) -> None:
    seen: list[Any] = []
    name, labels = f"role-{objects.namespace}", {"tests.webop.dev/of": objects.namespace}

    @webop.on.create("clusterroles", id="created", labels=labels)
    @webop.on.delete("clusterroles", id="deleted", labels=labels)
    async def fn(reason: str, namespace: str | None, **_: Any) -> None:
        seen.append((str(reason), namespace))

    async with run_operator():
        await client.create(CLUSTER_ROLES, None, {"metadata": {"name": name, "labels": labels}})
        await eventually(lambda: len(seen) == 1)
        await client.delete(CLUSTER_ROLES, None, name)
        await eventually(lambda: len(seen) == 2)
    assert seen == [("create", None), ("delete", None)]
