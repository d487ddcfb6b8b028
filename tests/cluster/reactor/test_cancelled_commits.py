"""What is finished is stored once, and in order, also if slower handlers are cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import webop
from tests.kit.http_relay import operate_behind, relay
from tests.kit.obstacles import denying
from tests.kit.operators import (
    DIFFBASE,
    Calls,
    Objects,
    RunOperator,
    build_settings,
    eventually,
    get_annotations,
    get_progress,
    operate,
)

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

# Nothing is stored before the operator stops, which waits for nobody.
LATE: Any = {"execution": {"commit_window": 60}, "batching": {"exit_timeout": 0.1}}


async def test_a_stop_between_sub_handlers_does_not_undo_what_the_first_of_them_has_changed(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    released = asyncio.Event()

    async def one(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("one", kwargs)
        patch.metadata.labels["x"] = "newer"

    async def two(**kwargs: Any) -> None:
        calls.note("two", kwargs)
        await released.wait()

    @webop.on.create("widgets", registry=registry, id="first")
    async def first(patch: webop.Patch, **kwargs: Any) -> str:
        calls.note("first", kwargs)
        patch.metadata.labels["x"] = "older"
        return "result"

    @webop.on.create("widgets", registry=registry, id="parent")
    async def parent(**_: Any) -> None:
        subhandlers: dict[str, Any] = {"one": one, "two": two}
        await webop.execute(fns=subhandlers)

    async with run_operator(build_settings(**LATE)):
        await objects.create("a")
        await calls.wait("a", "two")
    released.set()
    async with run_operator(build_settings(**LATE)):
        raw = await objects.wait_handled("a")
    assert raw["metadata"]["labels"] == {"x": "newer"}
    assert raw["status"]["first"] == "result"
    assert calls.handlers("a") == ["first", "one", "two", "two"]


async def test_a_handler_whose_patch_is_denied_is_not_called_again_after_a_stop_during_the_next(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    released = asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="first")
    async def first(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("first", kwargs)
        patch.metadata.labels["forbidden"] = "yes"

    @webop.on.create("widgets", registry=registry, id="second")
    async def second(**kwargs: Any) -> None:
        calls.note("second", kwargs)
        await released.wait()

    expression = "!has(object.metadata.labels) || !('forbidden' in object.metadata.labels)"
    async with denying(objects, expression, {"metadata": {"labels": {"forbidden": "x"}}}):
        async with run_operator(build_settings(**LATE)):
            await objects.create("a")
            await calls.wait("a", "second")
        released.set()
        async with run_operator(build_settings(**LATE)):
            await objects.wait_handled("a")
    assert calls.handlers("a") == ["first", "second", "second"]


async def test_a_function_in_a_patch_is_applied_once_if_a_sub_handler_is_stored_meanwhile(
    webop_cluster: LocalCluster, registry: webop.OperatorRegistry, objects: Objects
) -> None:
    released = asyncio.Event()

    def count(body: Any) -> None:
        annotations = body["metadata"].setdefault("annotations", {})
        annotations["count"] = str(int(annotations.get("count", 0)) + 1)

    async def wait(**_: Any) -> None:
        await released.wait()

    @webop.on.create("widgets", registry=registry, id="first")
    async def first(patch: webop.Patch, **_: Any) -> None:
        patch.fns.append(count)

    @webop.on.create("widgets", registry=registry, id="parent")
    async def parent(**_: Any) -> None:
        await webop.execute(fns={"one": lambda **_: None, "two": wait})

    async def delay(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and b"first" in request.content:
            await asyncio.sleep(0.5)
        return None

    settings = build_settings(execution={"commit_window": 0.1})
    async with operate_behind(webop_cluster, delay, registry, objects.namespace, settings):
        await objects.create("a")
        await objects.wait("a", lambda raw: {"first", "parent.one"} <= get_progress(raw).keys())
        released.set()
        raw = await objects.wait_handled("a")
    assert get_annotations(raw)["count"] == "1"


async def test_a_handler_that_ended_while_the_api_server_was_away_is_stored_at_the_stop(
    webop_cluster: LocalCluster,
    registry: webop.OperatorRegistry,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    released = asyncio.Event()
    refused: list[httpx.Request] = []

    @webop.on.create("widgets", registry=registry, id="first")
    async def first(**kwargs: Any) -> None:
        calls.note("first", kwargs)

    @webop.on.create("widgets", registry=registry, id="second")
    async def second(**kwargs: Any) -> None:
        calls.note("second", kwargs)
        await released.wait()

    async def refuse_once(request: httpx.Request) -> httpx.Response | None:
        if refused or request.method != "PATCH":
            return None
        refused.append(request)
        return httpx.Response(503, json={"kind": "Status", "code": 503})

    settings = build_settings(execution={"commit_window": 0.1}, batching={"exit_timeout": 0.1})
    options: Any = {"beside": True, "namespaces": [objects.namespace]}
    async with relay(webop_cluster) as relayed:
        relayed.meddle = refuse_once
        with caplog.at_level("DEBUG", "webop"):
            async with operate(relayed.info, registry, settings, **options):
                await objects.create("a")
                await eventually(lambda: "Retrying in" in caplog.text)
        released.set()
        async with operate(relayed.info, registry, settings, **options):
            await objects.wait_handled("a")
    assert calls.handlers("a") == ["first", "second", "second"]


async def test_the_exit_takes_no_longer_than_its_timeout_and_five_seconds_if_the_api_server_hangs(
    webop_cluster: LocalCluster,
    registry: webop.OperatorRegistry,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging, never = asyncio.Event(), asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="first")
    async def first(**_: Any) -> None: ...

    @webop.on.create("widgets", registry=registry, id="second")
    async def second(name: str, **kwargs: Any) -> None:
        calls.note("second", {**kwargs, "name": name})
        await (hanging if name == "writes-already" else never).wait()

    @webop.daemon("widgets", registry=registry, id="daemon", labels={"daemon": "yes"})
    async def daemon(stopped: webop.DaemonStopped, patch: webop.Patch, **_: Any) -> None:
        await stopped.wait()
        patch.metadata.labels["daemon"] = "ended"

    async def hang(request: httpx.Request) -> httpx.Response | None:
        if hanging.is_set():
            requests.append(request)
            await never.wait()
        return None

    requests: list[httpx.Request] = []
    settings = build_settings(execution={"commit_window": 60}, batching={"exit_timeout": 1})
    options: Any = {"beside": True, "namespaces": [objects.namespace]}
    loop = asyncio.get_running_loop()
    async with relay(webop_cluster) as relayed:
        relayed.meddle = hang
        async with operate(relayed.info, registry, settings, **options) as running:
            for name in ("writes-already", "is-cancelled", "is-cancelled-as-its-daemon-writes"):
                await objects.create(name, labels={"daemon": "yes"} if "daemon" in name else {})
                await calls.wait(name)
            hanging.set()
            began = loop.time()
            await running.stop()
            duration = loop.time() - began
        never.set()
    assert len(requests) >= 3, "all have tried to write"
    assert duration < 6.5
    assert "swallow" not in caplog.text, "the handlers are not to blame"


async def test_at_a_stop_the_handlers_that_wait_for_a_running_one_are_left_to_the_next_operator(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    released = asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="first")
    async def first(**kwargs: Any) -> None:
        calls.note("first", kwargs)
        await released.wait()

    @webop.on.create("widgets", registry=registry, id="second")
    async def second(**kwargs: Any) -> None:
        calls.note("second", kwargs)

    async with run_operator(build_settings(batching={"exit_timeout": 30})):
        await objects.create("a")
        await calls.wait("a", "first")
        asyncio.get_running_loop().call_later(0.1, released.set)  # while the operator stops
    assert calls.handlers("a") == ["first"]
    assert "first" in get_progress(await objects.get("a"))
    async with run_operator():
        await objects.wait_handled("a")
    assert calls.handlers("a") == ["first", "second"]


@pytest.mark.feature("SUB-07", "SUB-08")
async def test_sub_handlers_are_called_in_later_processes_though_their_parent_has_timed_out(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    hanging = asyncio.Event()

    async def quick(**kwargs: Any) -> None:
        calls.note("quick", kwargs)

    async def slow(**kwargs: Any) -> None:
        calls.note("slow", kwargs)
        if len(calls.of("one", "slow")) == 1:
            await hanging.wait()

    @webop.on.resume("widgets", registry=registry, id="parent", timeout=0.5)
    async def parent(name: str, **_: Any) -> None:
        if name == "one":
            await webop.execute(fns={"quick": quick, "slow": slow})

    await objects.create("one")
    for number in (1, 2):
        async with run_operator():
            await calls.wait("one", "slow", number)
            body = await objects.wait("one", lambda body: not get_progress(body))
            await objects.wait_handled("one")
        assert calls.handlers("one") == ["quick", "slow"] * number, body


@pytest.mark.feature("SUB-08", "CON-07")
@pytest.mark.parametrize("how", ["of another call", "registered beside"])
async def test_a_sub_handler_that_is_done_is_not_repeated_if_one_is_interrupted_that_is(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    how: str,
) -> None:
    released = asyncio.Event()

    async def one(**kwargs: Any) -> None:
        calls.note("one", kwargs)

    async def two(**kwargs: Any) -> None:
        calls.note("two", kwargs)
        await released.wait()

    @webop.on.create("widgets", registry=registry, id="parent")
    async def parent(**_: Any) -> None:
        if how == "registered beside":
            webop.register(two, id="two")
        await webop.execute(fns={"one": one})
        if how == "of another call":
            await webop.execute(fns={"two": two})

    async with run_operator(build_settings(**LATE)):
        await objects.create("a")
        await calls.wait("a", "two")
    released.set()
    async with run_operator(build_settings(**LATE)):
        await objects.wait_handled("a")
    assert calls.handlers("a") == ["one", "two", "two"]


@pytest.mark.feature("SUB-07", "SUB-08")
async def test_sub_handlers_of_sub_handlers_leave_no_records_after_a_timeout_of_the_first(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    hanging, ended = asyncio.Event(), asyncio.Event()

    async def quick(**kwargs: Any) -> None:
        calls.note("quick", kwargs)

    async def slow(**_: Any) -> None:
        await hanging.wait()

    async def group(**_: Any) -> None:
        await webop.execute(fns={"quick": quick, "slow": slow})

    @webop.on.create("widgets", registry=registry, id="parent", timeout=0.5)
    async def parent(**_: Any) -> None:
        await webop.execute(fns={"group": group})

    @webop.on.create("widgets", registry=registry, id="other")
    async def other(**_: Any) -> None:
        if not ended.is_set():
            raise webop.TemporaryError("not yet", delay=0.1)

    async with run_operator(build_settings(execution={"commit_window": 0.1})):
        await objects.create("a")
        await objects.wait("a", lambda raw: '"failure":true' in get_progress(raw).get("parent", ""))
        ended.set()
        raw = await objects.wait_handled("a")
    assert calls.handlers("a") == ["quick"]
    assert not get_progress(raw)


@pytest.mark.feature("SUB-07", "SUB-08")
async def test_sub_handlers_of_a_resume_handler_go_on_when_their_object_changes(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    async def one(**kwargs: Any) -> None:
        calls.note("one", kwargs)

    async def two(retry: int, **kwargs: Any) -> None:
        calls.note(f"two {retry}", kwargs)
        if retry < 2:
            raise webop.TemporaryError("not yet", delay=1.0)

    @webop.on.resume("widgets", registry=registry, id="parent")
    async def parent(**_: Any) -> None:
        children: dict[str, Any] = {"one": one, "two": two}
        await webop.execute(fns=children)

    await objects.create("a", annotations={DIFFBASE: '{"spec":{}}'})
    async with run_operator():
        await objects.wait("a", lambda raw: "parent.two" in get_progress(raw))
        await objects.patch("a", {"spec": {"x": 1}})
        await objects.wait_handled("a")
    assert calls.handlers("a") == ["one", "two 0", "two 1", "two 2"]


@pytest.mark.feature("SUB-07", "SUB-08")
async def test_records_of_sub_handlers_go_with_the_next_cycle_if_it_replaces_theirs(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    async def one(**kwargs: Any) -> None:
        calls.note("one", kwargs)

    async def two(**_: Any) -> None:
        raise webop.TemporaryError("not yet", delay=60)

    async def three(**kwargs: Any) -> None:
        calls.note("three", kwargs)

    @webop.on.resume("widgets", registry=registry, id="parent")
    @webop.on.update("widgets", registry=registry, id="parent")
    async def parent(reason: webop.Reason, **_: Any) -> None:
        if reason is webop.Reason.UPDATE:
            await webop.execute(fns={"three": three})
        else:
            await webop.execute(fns={"one": one, "two": two})

    await objects.create("a", annotations={DIFFBASE: '{"spec":{}}'})
    async with run_operator():
        await objects.wait("a", lambda raw: "parent.two" in get_progress(raw))
        await objects.patch("a", {"spec": {"x": 1}})
        raw = await objects.wait_handled("a")
    assert calls.handlers("a") == ["one", "three"]
    assert not get_progress(raw)
