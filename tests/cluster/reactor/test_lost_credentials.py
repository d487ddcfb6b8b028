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
import pytest

import webop
from tests.cluster.reactor.observations import Crowd
from tests.kit.http_relay import Relay, fail, relay
from tests.kit.operators import Objects, RunOperator, build_settings, do_nothing
from tests.kit.waiting import eventually
from webop.client.auth.vault import ConnectionInfo
from webop.reactor.observer import Scope
from webop.runtime.operator import Operator, OperatorOptions

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@dataclass
class Hosted:
    """An operator that survives the loss of its credentials, and the relay that refuses them."""

    operator: Operator
    relayed: Relay

    async def lock_out(self) -> None:
        """Refuse all credentials, and wait until the login brings no others."""
        self.relayed.lock()
        await eventually(lambda: self.operator.login.problem, "the credentials are lost")

    async def let_in(self) -> None:
        """Accept credentials, and wait until there are some."""
        self.relayed.is_locked = False
        await eventually(lambda: not self.operator.login.problem, "the credentials are found")


RunHosted = Callable[..., AbstractAsyncContextManager[Hosted]]


@pytest.fixture
def run_hosted(webop_cluster: LocalCluster, objects: Objects) -> RunHosted:
    """Runs an operator; the given events, which hold its threads, are set at its end."""

    @asynccontextmanager
    async def run(*holding: threading.Event, **sections: Any) -> AsyncIterator[Hosted]:
        async with relay(webop_cluster) as relayed:

            @webop.on.login()
            async def login(**_: Any) -> ConnectionInfo | None:
                return None if relayed.is_locked else relayed.info

            @webop.on.event(f"absent.{objects.namespace}.webop.dev", id="absent")
            async def absent(**_: Any) -> None: ...  # so that discovery is repeated all the time

            quick: Any = {
                "networking": {"error_backoffs": [0.1]},
                "batching": {"exit_timeout": 0.2},
            }
            options = OperatorOptions(
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


async def test_handlers_and_daemons_that_run_as_credentials_are_lost_go_on(
    run_hosted: RunHosted, objects: Objects
) -> None:
    crowd, released = Crowd(), threading.Event()
    steps: Counter[str] = Counter()

    @webop.on.update("widgets", id="sync")
    def sync(name: str, **_: Any) -> None:
        with crowd.enter(f"sync handler of {name}"):
            released.wait(30)

    @webop.on.update("widgets", id="slow")
    async def slow(name: str, **_: Any) -> str:
        with crowd.enter(f"handler of {name}"):
            await asyncio.to_thread(released.wait, 30)
            return "done"

    @webop.daemon("widgets", id="daemon")
    async def daemon(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(f"daemon of {name}"):
            while not stopped:
                steps[name] += 1
                await stopped.wait(0.1)

    async with run_hosted(released) as hosted:
        await objects.make("one", {"a": 1})
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: crowd.present.total() >= 2, "they run")
        await hosted.lock_out()
        before = steps["one"]
        await eventually(lambda: steps["one"] > before + 3, "the daemon goes on")
        released.set()
        await hosted.let_in()
        await objects.wait("one", lambda body: body.get("status", {}).get("slow") == "done")
        await objects.wait_handled("one")
    assert set(crowd.entries.values()) == {1}


async def test_what_resume_handlers_want_is_written_when_lost_credentials_are_found(
    run_operator: RunOperator, run_hosted: RunHosted, objects: Objects
) -> None:
    resumed: Counter[str] = Counter()
    webop.on.create("widgets", id="created")(do_nothing)
    async with run_operator():
        await objects.make("old")

    @webop.on.resume("widgets", id="resumed")
    async def resume(name: str, patch: webop.Patch, **_: Any) -> None:
        resumed[name] += 1
        patch.spec["resumed"] = "yes"

    async with run_hosted() as hosted:

        async def lock(request: httpx.Request) -> httpx.Response | None:
            if request.method != "PATCH":
                return None
            hosted.relayed.lock()
            return fail(401)

        hosted.relayed.meddle = lock
        await eventually(lambda: hosted.relayed.is_locked, "the patch is refused")
        await hosted.lock_out()
        hosted.relayed.meddle = None
        await hosted.let_in()
        await objects.wait("old", lambda body: body["spec"].get("resumed"))
    assert resumed == {"old": 1}


async def test_a_login_that_brings_nothing_for_once_does_not_end_a_lease_that_is_held(
    run_hosted: RunHosted, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    entries: Counter[str] = Counter()
    released = threading.Event()

    @webop.on.create("widgets", id="slow")
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
