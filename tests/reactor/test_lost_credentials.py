"""Credentials that are lost and found while work is being done about objects."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

import webop
from tests.operating import (
    CRDS,
    Calls,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    eventually,
    get_progress,
)
from tests.reactor.relay import Relay, relay
from tests.reactor.witnesses import Crowd, Names
from webop.client.api import Client
from webop.client.credentials import ConnectionInfo
from webop.reactor.cluster_changes import NAMESPACES
from webop.reactor.observer import Scope
from webop.running import Operator, OperatorOptions

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@dataclass
class Hosted:
    """An operator that survives the loss of its credentials, and the relay that refuses them."""

    operator: Operator
    relayed: Relay

    async def lock_out(self) -> None:
        """Refuse all credentials, and wait until the work with them has ended."""
        self.relayed.lock()
        await eventually(lambda: self.operator.observer is None, "the work has ended")

    async def let_in(self) -> None:
        """Accept credentials, and wait until the work has begun again."""
        self.relayed.is_locked = False
        await eventually(lambda: self.operator.observer is not None, "the work has begun again")


RunHosted = Callable[..., AbstractAsyncContextManager[Hosted]]


@pytest.fixture
def run_hosted(
    registry: webop.OperatorRegistry, webop_cluster: LocalCluster, objects: Objects
) -> RunHosted:
    """Runs an operator; the given events, which hold its threads, are set at its end."""

    @asynccontextmanager
    async def run(*holding: threading.Event, **sections: Any) -> AsyncIterator[Hosted]:
        async with relay(webop_cluster) as relayed:

            @webop.on.login(registry=registry)
            async def login(**_: Any) -> ConnectionInfo | None:
                return None if relayed.is_locked else relayed.info

            @webop.on.event(f"absent.{objects.namespace}.webop.dev", registry=registry, id="absent")
            async def absent(**_: Any) -> None: ...  # so that discovery is repeated all the time

            quick: Any = {
                "networking": {"error_backoffs": [0.1]},
                "batching": {"exit_timeout": 0.2},
            }
            options = OperatorOptions(
                registry=registry,
                settings=build_settings(**quick | sections),
                scope=Scope(clusterwide=False, patterns=(f"{objects.namespace}*",)),
                is_hosted=True,
            )
            operator = Operator(options)
            running = asyncio.create_task(operator.run())
            try:
                yield Hosted(operator, relayed)
            finally:
                for event in holding:
                    event.set()
                running.cancel()
                await asyncio.wait({running})

    return run


async def test_a_thread_that_outlives_its_credentials_keeps_its_object_to_itself(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects
) -> None:
    crowd = Crowd()
    released = threading.Event()

    @webop.on.update("widgets", registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        with crowd.enter(name):
            if name == "one":
                released.wait(30)

    async with run_hosted(released) as hosted:
        for name in ("one", "two"):
            await objects.create(name, {"a": 1})
            await objects.wait_handled(name)
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: crowd.present["one"] == 1, "the handler runs")
        await hosted.lock_out()
        await hosted.let_in()
        await objects.patch("two", {"spec": {"a": 2}})
        await eventually(lambda: crowd.entries["two"] == 1, "others are handled")
        await asyncio.sleep(0.5)
        assert crowd.entries["one"] == 1
        released.set()
        await objects.wait_handled("one")
    assert set(crowd.most.values()) == {1}


async def test_an_object_is_left_alone_until_the_last_of_its_threads_has_ended(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects
) -> None:
    entries: Counter[str] = Counter()
    handler_released, daemon_released = threading.Event(), threading.Event()

    @webop.on.update("widgets", registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        entries[name] += 1
        handler_released.wait(60)

    @webop.daemon(
        "widgets", registry=registry, id="stubborn", field="spec.a", cancellation_timeout=0.2
    )
    def stubborn(name: str, **_: Any) -> None:
        entries[f"daemon of {name}"] += 1
        daemon_released.wait(60)

    async with run_hosted(handler_released, daemon_released) as hosted:
        await objects.create("one", {"a": 1})
        await objects.wait_handled("one")
        await eventually(lambda: entries["daemon of one"] == 1, "the daemon runs")
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: entries["one"] == 1, "the handler runs")
        await hosted.lock_out()
        hosted.relayed.is_locked = False
        daemon_released.set()
        await hosted.let_in()
        await objects.create("two", {"a": 2})
        await objects.wait_handled("two")
        await asyncio.sleep(0.5)
        assert entries["one"] == 1
        handler_released.set()
        await objects.wait_handled("one")


async def test_objects_are_resumed_once_however_often_credentials_are_lost(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    run_hosted: RunHosted,
    objects: Objects,
) -> None:
    resumed: Counter[str] = Counter()
    is_allowed = False

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with run_operator():
        for name in ("old", "pending"):
            await objects.create(name)
            await objects.wait_handled(name)

    @webop.on.resume("widgets", registry=registry, id="resumed")
    async def resume(name: str, **_: Any) -> None:
        resumed[name] += 1
        if name == "pending" and not is_allowed:
            raise webop.TemporaryError("not yet", delay=0.2)

    async with run_hosted() as hosted:
        await eventually(lambda: resumed["old"] and resumed["pending"], "they are resumed")
        await objects.create("new")
        await objects.wait_handled("new")
        await hosted.lock_out()
        await hosted.let_in()
        before, is_allowed = resumed["pending"], True
        await eventually(lambda: resumed["pending"] > before, "the attempts go on")
        await hosted.lock_out()
        await hosted.let_in()
        await objects.create("newer")
        await objects.wait_handled("newer")
    assert resumed == {"old": 1, "pending": before + 1}


async def test_a_retry_of_a_resume_handler_comes_though_credentials_are_lost_during_a_creation(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects
) -> None:
    resumed: Counter[str] = Counter()
    is_allowed = False

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    @webop.on.resume("widgets", registry=registry, id="resumed")
    async def resume(name: str, **_: Any) -> None:
        resumed[name] += 1
        if not is_allowed:
            raise webop.TemporaryError("not yet", delay=0.2)

    await objects.create("unhandled")
    async with run_hosted() as hosted:
        await eventually(lambda: resumed["unhandled"], "it is resumed")
        await hosted.lock_out()
        await hosted.let_in()
        before, is_allowed = resumed["unhandled"], True
        await objects.wait_handled("unhandled")
    assert resumed == {"unhandled": before + 1}


async def test_objects_of_two_versions_of_a_kind_are_resumed_once_however_credentials_are_lost(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects, client: Client
) -> None:
    resumed: Counter[str] = Counter()
    kind = Kind(f"{objects.namespace}.versions.webop.dev", "geese", "Goose")
    crd = kind.build_crd()
    (version,) = crd["spec"]["versions"]
    crd["spec"]["versions"] = [version, {**version, "name": "v2", "storage": False}]
    await client.create(CRDS, None, crd)
    await kind.wait_served(client)
    geese = Objects(client, kind, objects.namespace)

    for chosen in ("v1", "v2"):

        @webop.on.resume(kind.group, chosen, kind.plural, registry=registry, param=chosen)
        async def resume(param: str, **_: Any) -> None:
            resumed[param] += 1

        @webop.on.event(kind.group, chosen, kind.plural, registry=registry, param=chosen)
        async def seen(param: str, name: str, **_: Any) -> None:
            resumed[f"{name} {param}"] += 1

    await geese.create("old")
    async with run_hosted() as hosted:
        await eventually(lambda: resumed["v1"] and resumed["v2"], "it is resumed in both")
        await hosted.lock_out()
        await hosted.let_in()
        await eventually(lambda: min(resumed["old v1"], resumed["old v2"]) > 1, "they are listed")
        await geese.create("new")
        await geese.wait_handled("new")
    assert (resumed["v1"], resumed["v2"]) == (1, 1)


def lock_at_patches(relayed: Relay) -> None:
    """Let nobody in any more as soon as an object is to be patched."""

    async def lock(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH":
            return None
        relayed.lock()
        return httpx.Response(401, json={"kind": "Status", "code": 401})

    relayed.meddle = lock


async def test_what_resume_handlers_want_is_written_when_lost_credentials_are_found(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    run_hosted: RunHosted,
    objects: Objects,
) -> None:
    resumed: Counter[str] = Counter()

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with run_operator():
        await objects.create("old")
        await objects.wait_handled("old")

    @webop.on.resume("widgets", registry=registry, id="resumed")
    async def resume(name: str, patch: webop.Patch, **_: Any) -> None:
        resumed[name] += 1
        patch.spec["resumed"] = "yes"

    async with run_hosted() as hosted:
        lock_at_patches(hosted.relayed)
        await eventually(lambda: hosted.relayed.is_locked, "the patch is refused")
        await hosted.lock_out()
        hosted.relayed.meddle = None
        await hosted.let_in()
        await objects.wait("old", lambda body: body["spec"].get("resumed"))
    assert resumed == {"old": 1}


async def test_deletion_handlers_are_not_called_again_when_lost_credentials_are_found(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects
) -> None:
    deleted: Counter[str] = Counter()

    @webop.on.delete("widgets", registry=registry, id="deleted")
    async def delete(name: str, **_: Any) -> None:
        deleted[name] += 1

    async with run_hosted() as hosted:
        await objects.create("one")
        await objects.wait("one", lambda body: body["metadata"].get("finalizers"))
        lock_at_patches(hosted.relayed)
        await objects.delete("one")
        await eventually(lambda: hosted.relayed.is_locked, "the patch is refused")
        await hosted.lock_out()
        hosted.relayed.meddle = None
        await hosted.let_in()
        await objects.wait_gone("one")
    assert deleted == {"one": 1}


async def test_a_daemon_that_has_ended_is_not_started_again_when_lost_credentials_are_found(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects
) -> None:
    entries: Counter[str] = Counter()

    @webop.daemon("widgets", registry=registry, id="daemon")
    async def daemon(name: str, **_: Any) -> None:
        entries[name] += 1

    async with run_hosted() as hosted:
        await objects.create("one")
        await eventually(lambda: entries["one"] == 1, "the daemon has run")
        await hosted.lock_out()
        await hosted.let_in()
        await objects.create("two")
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: entries["two"] == 1, "the operator works again")
        await asyncio.sleep(0.5)
    assert entries == {"one": 1, "two": 1}


async def test_event_handlers_get_the_deletions_of_the_time_without_credentials_once(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects, calls: Calls
) -> None:
    @webop.on.event("widgets", registry=registry, id="event")
    async def event(event: Any, **kwargs: Any) -> None:
        calls.note("event", kwargs, type=event["type"])

    async with run_hosted() as hosted:
        for name in ("one", "two", "three"):
            await objects.create(name)
            await calls.wait(name)
        await objects.delete("three")
        await eventually(lambda: calls.of("three")[-1]["type"] == "DELETED")
        await hosted.lock_out()
        await objects.delete("two")
        await hosted.let_in()
        await eventually(lambda: calls.of("two")[-1]["type"] == "DELETED")
        await objects.create("four")
        await calls.wait("four")
    types = [call["type"] for name in ("one", "two", "three") for call in calls.of(name)]
    assert types.count("DELETED") == 2


async def test_nothing_is_remembered_of_objects_that_are_deleted_while_there_are_no_credentials(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects
) -> None:
    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with run_hosted() as hosted:
        for name in ("one", "two", "three"):
            await objects.create(name)
            await objects.wait_handled(name)
        memos = hosted.operator.context.memos
        assert len(memos) == 3
        await hosted.lock_out()
        await objects.delete("two")
        await hosted.let_in()
        await objects.create("four")
        await objects.wait_handled("four")
        await eventually(lambda: len(memos) == 3, "it is forgotten")


async def test_a_login_that_brings_nothing_for_once_does_not_end_a_lease_that_is_held(
    registry: webop.OperatorRegistry,
    run_hosted: RunHosted,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries: Counter[str] = Counter()
    released = threading.Event()

    @webop.on.create("widgets", registry=registry, id="slow")
    def slow(name: str, **_: Any) -> None:
        entries[name] += 1
        released.wait(30)

    leadership = {
        "lease_name": "held",
        "lease_namespace": objects.namespace,
        "retry_period": 0.5,
        "exits_when_stuck": False,  # it is the test that would be ended
    }
    async with run_hosted(released, leadership=leadership) as hosted:
        await objects.create("one", {"a": 1})
        await eventually(lambda: entries["one"] == 1, "the handler runs")
        await hosted.lock_out()
        await hosted.let_in()
        assert "work continues that cannot be stopped" not in caplog.text
        released.set()
        await objects.wait_handled("one")


async def test_an_index_is_exact_after_credentials_were_lost_and_found(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects, calls: Calls
) -> None:
    crowd = Crowd()
    index = Names(registry, "widgets")

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(names: webop.Index[str, str], **kwargs: Any) -> None:
        calls.note("created", kwargs, seen=set(names))

    @webop.daemon("widgets", registry=registry, id="daemon")
    async def daemon(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(name):
            await stopped.wait()
            await asyncio.sleep(0.5)

    async with run_hosted(batching={}) as hosted:
        for name in ("kept", "doomed"):
            await objects.create(name)
            await objects.wait_handled(name)
        await eventually(lambda: crowd.present.total() == 2, "the daemons run")
        await hosted.lock_out()
        await eventually(lambda: crowd.present.total() == 0, "the daemons end")
        assert index() == {"kept", "doomed"}  # for admission, which goes on
        await objects.patch("doomed", {"metadata": {"finalizers": None}})
        await objects.delete("doomed")
        await objects.create("new")
        await hosted.let_in()
        (call,) = await calls.wait("new")
        await eventually(lambda: crowd.present.total() == 2, "the daemons run again")
    assert call["seen"] == {"kept", "new"}
    assert set(crowd.most.values()) == {1}


async def test_an_index_forgets_an_object_whose_deletion_comes_in_a_list_that_breaks(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects
) -> None:
    index = Names(registry, "widgets")
    breaks = 0

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with run_hosted() as hosted:
        for name in ("kept", "doomed"):
            await objects.create(name)
            await objects.wait_handled(name)
        raw = await objects.get("doomed")
        await hosted.lock_out()
        await objects.delete("doomed")
        watch = hosted.relayed.watch

        async def break_list(request: httpx.Request) -> AsyncIterator[bytes]:
            nonlocal breaks
            if "widgets" in request.url.path and "sendInitialEvents" in request.url.params:
                breaks += 1
                yield orjson.dumps({"type": "DELETED", "object": raw}) + b"\n"
                return
            async for data in watch(request):
                yield data

        hosted.relayed.watch = break_list
        await hosted.let_in()
        await objects.create("new")
        await objects.wait_handled("new")
        assert breaks
        assert index() == {"kept", "new"}


@pytest.mark.parametrize("is_late", [False, True])
async def test_objects_that_still_wait_are_resumed_later_except_those_of_a_late_kind(
    registry: webop.OperatorRegistry,
    run_hosted: RunHosted,
    objects: Objects,
    client: Client,
    is_late: bool,
) -> None:
    calls: list[str] = []
    is_held, word = asyncio.Event(), f"birds-{objects.namespace}"
    kind = Kind(f"{objects.namespace}.waiting.webop.dev", "geese", "Goose")
    await kind.define(client)
    geese = Objects(client, kind, objects.namespace)

    @webop.on.create(category=word, registry=registry, id="created")
    async def created(name: str, **_: Any) -> None:
        calls.append(f"created {name}")
        await is_held.wait()

    @webop.on.resume(category=word, registry=registry, id="resumed")
    async def resumed(name: str, **_: Any) -> None:
        calls.append(f"resumed {name}")

    @webop.on.create("widgets", registry=registry, id="early")
    async def early(**_: Any) -> None: ...

    names = ("one", "two")
    for name in names:
        await geese.create(name)
    category = {"spec": {"names": {"categories": [word]}}}
    if not is_late:
        await client.patch(CRDS, None, kind.crd_name, category)
    async with run_hosted(batching={"exit_timeout": 0.2, "worker_limit": 1}) as hosted:
        await objects.create("first")
        await objects.wait_handled("first")  # so the operator has looked for kinds
        if is_late:
            await client.patch(CRDS, None, kind.crd_name, category)
        await eventually(lambda: calls, "the first one is handled, the other one waits")
        await hosted.lock_out()
        await hosted.let_in()
        is_held.set()
        for name in names:
            await geese.wait_handled(name)
    resumptions = sorted(call for call in calls if call.startswith("resumed"))
    assert resumptions == ([] if is_late else ["resumed one", "resumed two"])


async def test_objects_are_resumed_though_credentials_were_lost_before_they_were_all_listed(
    registry: webop.OperatorRegistry, run_hosted: RunHosted, objects: Objects, calls: Calls
) -> None:
    indexed: list[str] = []
    is_held = asyncio.Event()

    @webop.index("widgets", registry=registry, id="index")
    async def index(name: str, **_: Any) -> None:
        indexed.append(name)
        await is_held.wait()

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**kwargs: Any) -> None:
        calls.note("created", kwargs)

    @webop.on.resume("widgets", registry=registry, id="resumed")
    async def resumed(**kwargs: Any) -> None:
        calls.note("resumed", kwargs)

    names = ("one", "two", "three")
    for name in names:
        await objects.create(name)
    async with run_hosted() as hosted:
        await eventually(lambda: indexed, "the first one is indexed, the others are not listed")
        await hosted.lock_out()
        is_held.set()
        await hosted.let_in()
        for name in names:
            await objects.wait_handled(name)
            assert sorted(calls.handlers(name)) == ["created", "resumed"]


@pytest.mark.parametrize("what", ["kind", "namespace"])
async def test_objects_of_what_appears_while_credentials_are_lost_are_created_not_resumed(
    registry: webop.OperatorRegistry,
    run_hosted: RunHosted,
    objects: Objects,
    client: Client,
    calls: Calls,
    what: str,
) -> None:
    kind, word = Kind(f"{objects.namespace}.late.webop.dev", "storks", "Stork"), "widgets"
    if what == "kind":
        word = kind.crd_name
        late = Objects(client, kind, objects.namespace)
    else:
        late = Objects(client, objects.kind, f"{objects.namespace}-late")

    @webop.on.create(word, registry=registry, id="created")
    async def created(**kwargs: Any) -> None:
        calls.note("created", kwargs)

    @webop.on.resume(word, registry=registry, id="resumed")
    async def resumed(**kwargs: Any) -> None:
        calls.note("resumed", kwargs)

    async with run_hosted() as hosted:
        await eventually(lambda: hosted.operator.observer is not None, "the work has begun")
        assert hosted.operator.observer is not None
        await hosted.operator.observer.scanned.wait()
        await hosted.lock_out()
        if what == "kind":
            await kind.define(client)
        else:
            await client.create(NAMESPACES, None, {"metadata": {"name": late.namespace}})
        await late.create("one")
        await hosted.let_in()
        await late.wait_handled("one")
    assert calls.handlers("one") == ["created"]


async def test_own_records_that_are_being_written_are_not_taken_for_those_of_others(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    run_hosted: RunHosted,
    objects: Objects,
) -> None:
    counts: Counter[str] = Counter()
    is_patching, patches = False, 0
    free, go_on, holding = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="created")
    async def created(**_: Any) -> None: ...

    async with run_operator():
        for name in ("a-busy", "one"):
            await objects.create(name)
            await objects.wait_handled(name)

    @webop.on.update("widgets", registry=registry, id="updated", field="spec.x")
    async def updated(name: str, **_: Any) -> None:
        counts[f"updated {name}"] += 1
        await free.wait()

    @webop.on.resume("widgets", registry=registry, id="resume")
    async def resume(name: str, retry: int, **_: Any) -> None:
        counts[f"resumed {name}"] += 1
        if not retry and name == "one":
            raise webop.TemporaryError("again", delay=0.5)

    @webop.on.event("widgets", registry=registry, id="event")
    async def event(name: str, patch: webop.Patch, **_: Any) -> None:
        if is_patching and name == "one":
            patch.metadata.annotations["example.com/seen"] = "yes"

    async with run_hosted(batching={"exit_timeout": 0.2, "worker_limit": 1}) as hosted:
        relayed = hosted.relayed

        async def meddle(request: httpx.Request) -> httpx.Response | None:
            nonlocal patches
            if request.method != "PATCH" or not request.url.path.endswith("/one"):
                return None
            patches += 1
            if patches > 2:
                holding.set()
                await go_on.wait()
            if patches != 2:  # the first one is the record of the first attempt
                return None
            relayed.lock()
            return httpx.Response(401, json={"kind": "Status", "code": 401})

        relayed.meddle = meddle
        await eventually(lambda: relayed.is_locked, "the patch is refused")
        await hosted.lock_out()
        assert counts["resumed one"] == 2
        assert get_progress(await objects.get("one"))
        is_patching = True
        await objects.patch("a-busy", {"spec": {"x": 1}})
        await hosted.let_in()
        await eventually(lambda: counts["updated a-busy"] == 1)
        await asyncio.wait_for(holding.wait(), 10)
        free.set()
        await asyncio.sleep(0.5)
        go_on.set()
        await objects.wait("one", lambda body: not get_progress(body))
        await asyncio.sleep(1)
    assert counts["resumed one"] == 2
