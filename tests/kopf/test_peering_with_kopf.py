"""Kopf and webop on one peering object: each pauses and resumes as the records say."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.cli_runner import invoke
from tests.kit.operators import Calls, build_settings, get_connection, is_handled, operate
from tests.kit.peering_objects import PeeringObject, provide_peerings
from tests.kit.processes import Command
from tests.kit.waiting import eventually
from tests.kopf.relay import KOPF, WEBOP, Relay
from webop.identities import detect_own_identity

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_LIFETIME = 5  # seconds; those who are killed are missed after it

_HANDLERS = f"""
@kopf.on.startup()
def live_shortly(settings, **_):
    settings.peering.lifetime = {_LIFETIME}

@kopf.on.create(KIND, labels={{'relay': kopf.ABSENT}})
def created(**kwargs):
    note('created', kwargs)
"""


class Story:
    """The two, and the object at which they meet."""

    def __init__(self, cluster: LocalCluster, relay: Relay, log: pytest.LogCaptureFixture) -> None:
        self.relay = relay
        self.objects = objects = relay.objects
        self.shared = PeeringObject(objects.client, objects.namespace, "mine")
        self.calls = Calls()
        self.log = log
        self.registry = webop.OperatorRegistry()
        self._cluster = cluster

        @webop.on.create(objects.resource.name, registry=self.registry, id="created")
        async def created(**kwargs: Any) -> None:
            self.calls.note("created", kwargs)

    def operate(self, priority: int) -> Any:
        settings = build_settings(peering={"lifetime": _LIFETIME})
        return operate(
            get_connection(self._cluster),
            self.registry,
            settings,
            beside=True,
            namespaces=[self.objects.namespace],
            standalone=False,
            peering_name="mine",
            priority=priority,
        )

    async def run_webop(self, *args: str) -> None:
        """Run another command of webop, with the defaults of the person who runs the tests."""
        where = ("-n", self.objects.namespace, "-Pmine", "-q")
        env = {"KUBECONFIG": str(self._cluster.kubeconfig)}
        result = await asyncio.to_thread(invoke, *args, *where, env=env)
        assert result.exit_code == 0, result.output

    async def run_kopf(self, *args: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "kopf", *args, "-n", self.objects.namespace, "--peering=mine", "--quiet"),
            env={**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)},
        )
        assert await process.wait() == 0

    async def leave_alone(self, name: str) -> None:
        """Create an object that nobody is to handle."""
        await self.objects.create(name)
        await asyncio.sleep(0.3)
        assert not is_handled(await self.objects.get(name))


async def wait_for(command: Command, text: str, count: int = 1) -> None:
    """Wait until a text is in the output of Kopf for the n-th time."""
    await eventually(lambda: command.output.count(text) >= count, f"{count} times {text!r}")


async def wait_paused(command: Command) -> None:
    """Wait until Kopf has stopped watching: it handles what comes just after it says so."""
    stopped, begun = "Pausing the watch-stream", "Resuming the watch-stream"
    await eventually(lambda: command.output.rfind(stopped) > command.output.rfind(begun), stopped)


@pytest.fixture
def story(
    webop_cluster: LocalCluster,
    relay: Relay,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Story:
    monkeypatch.delenv("POD_ID", raising=False)
    provide_peerings(webop_cluster)
    relay.write(_HANDLERS)
    caplog.set_level(logging.INFO, "webop.coordination")
    return Story(webop_cluster, relay, caplog)


_PAUSING, _RESUMING = "Pausing operations in favour of", "Resuming operations"


@pytest.mark.feature("PEE-01", "PEE-02", "PEE-03", "PEE-12", "PEE-14", "PEE-15", "D-20", "CLI-14")
async def test_kopf_gives_way_to_webop(story: Story) -> None:
    await story.shared.create()
    async with story.relay.run(KOPF, "--peering=mine", "--verbose") as kopf:
        await story.objects.create("one")
        await story.relay.wait_for_call("one", "created", turn=1)
        await story.objects.wait_handled("one")

        async with story.operate(priority=100):
            await wait_for(kopf, _PAUSING)
            await wait_paused(kopf)
            await story.objects.make("two")
        await story.objects.create("three")
        await story.relay.wait_for_call("three", "created", turn=1)

        await story.run_webop("freeze", "--lifetime=600", "--message=why")
        await wait_for(kopf, _PAUSING, 2)
        await wait_paused(kopf)
        await story.leave_alone("four")
        await story.run_webop("resume")
        await story.relay.wait_for_call("four", "created", turn=1)

        async with story.operate(priority=0):
            await wait_for(kopf, "Possibly conflicting operators with the same priority")
            await eventually(lambda: "Pausing: the priority 0" in story.log.text)
            await wait_paused(kopf)
            await story.leave_alone("five")
        await story.relay.wait_for_call("five", "created", turn=1)

        async with story.relay.run(WEBOP, "--peering=mine", "--dev") as boss:
            await wait_for(kopf, _PAUSING, 3)
            await wait_paused(kopf)
            resumed = kopf.output.count(_RESUMING)
            await story.objects.create("six")
            await story.relay.wait_for_call("six", "created", turn=2)
            boss.process.kill()
            await story.objects.create("seven")
            await wait_for(kopf, _RESUMING, resumed + 1)
        await story.relay.wait_for_call("seven", "created", turn=1)
        assert await kopf.stop(signal.SIGINT) == 0
    assert [call["name"] for call in story.calls] == ["two"]
    assert not story.relay.read_calls("two")
    handled = {name: len(story.relay.read_calls(name)) for name in ("three", "four", "five")}
    assert handled == {"three": 1, "four": 1, "five": 1}
    assert "Traceback" not in kopf.output


@pytest.mark.feature("PEE-01", "PEE-02", "PEE-04", "PEE-14", "CLI-14", "CLI-15", "PEE-18")
async def test_webop_gives_way_to_kopf(story: Story) -> None:
    await story.shared.create()
    async with story.operate(priority=0):
        await story.objects.create("one")
        await story.calls.wait("one")
        async with story.relay.run(KOPF, "--peering=mine", "--dev") as kopf:
            await eventually(lambda: "(priority 666, valid until" in story.log.text)
            await story.objects.create("two")
            await story.relay.wait_for_call("two", "created", turn=1)
            await story.objects.wait_handled("two")
            kopf.process.kill()
            await story.objects.create("three")
            assert "Resuming" not in story.log.text
            await eventually(lambda: "Resuming" in story.log.text)
        await story.calls.wait("three")
        (own,) = await story.shared.wait(lambda records: len(records) == 1, "the dead are cleaned")
        assert re.fullmatch(r"[^@]+@[^/]+/\d+/\w+", own)

        await story.run_kopf("freeze", "--lifetime=600")
        await eventually(lambda: f"in favour of {detect_own_identity()} " in story.log.text)
        await story.leave_alone("four")
        await story.run_webop("resume")
        await story.calls.wait("four")
    assert [call["name"] for call in story.calls] == ["one", "three", "four"]
    assert len(story.relay.read_calls("two")) == 1
