"""The way out at SIGTERM: not ready at once, serving for a while, then closed and gone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from tests.kit.operators import Objects, is_handled
from tests.kit.processes import Command, Workshop
from tests.kit.reviews import build_review
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port

_PATIENCE = 20.0  # seconds
_DELAY = 1.5  # seconds; long enough to be told apart from the rest

_HANDLERS = """
import asyncio
import os
import webop

@webop.on.startup()
def configure(settings, **_):
    if 'PORT' in os.environ:
        settings.admission.server = webop.WebhookServer(port=int(os.environ['PORT']), insecure=True)

@webop.on.validate('kopfexamples')
async def check(**_):
    pass

@webop.on.validate('kopfexamples')
async def slow(logger, **_):
    print('slow is called', flush=True)
    await asyncio.sleep(1.5)

@webop.on.cleanup()
def clean(**_):
    print('cleaned up', flush=True)
"""


class Site:
    """A server in a process of its own, with the URLs of its webhooks and of its probes."""

    def __init__(self, command: Command, url: str, probes: str) -> None:
        self.command, self.url, self.probes = command, url, probes

    async def wait_ready(self, http: httpx.AsyncClient) -> None:
        await eventually(
            lambda: http.get(f"{self.probes}/readyz"),
            lambda: self.command.output,
            check=lambda answer: answer.status_code == 200,
            ignoring=httpx.TransportError,
        )

    def signal(self, number: signal.Signals) -> None:
        self.command.process.send_signal(number)

    async def wait_retiring(self, http: httpx.AsyncClient) -> None:
        while (await http.get(f"{self.probes}/readyz")).status_code == 200:
            await asyncio.sleep(0.01)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


@contextlib.asynccontextmanager
async def run_webop(
    workshop: Workshop, delay: float, scope: str = "-A", more: str = ""
) -> AsyncIterator[Site]:
    file = workshop.write(_HANDLERS + more)
    port, probes = find_free_port(), find_free_port()
    variables = {"PORT": str(port), "WEBOP_ADMISSION__SHUTDOWN_DELAY": str(delay)}
    liveness = f"--liveness=http://127.0.0.1:{probes}/healthz"
    async with workshop.start(scope, "--standalone", liveness, file, **variables) as command:
        yield Site(command, f"http://localhost:{port}", f"http://127.0.0.1:{probes}")


@contextlib.asynccontextmanager
async def run_uvicorn(
    workshop: Workshop, delay: float, more: str = "", **variables: str
) -> AsyncIterator[Site]:
    modules, port = str(workshop.write(_HANDLERS + more)), find_free_port()
    variables |= {"WEBOP_MODULES": modules, "WEBOP_ADMISSION__SHUTDOWN_DELAY": str(delay)}
    args = (f"--port={port}", "webop.app:app")
    async with workshop.start_module(("uvicorn",), *args, **variables) as command:
        yield Site(command, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}")


Run = Callable[[Workshop, float], contextlib.AbstractAsyncContextManager[Site]]


@pytest.mark.parametrize("run", [run_webop, run_uvicorn])
async def test_after_sigterm_it_is_not_ready_but_serves_and_closes_connections_then_ends(
    workshop: Workshop, http: httpx.AsyncClient, run: Run
) -> None:
    async with run(workshop, _DELAY) as site:
        await site.wait_ready(http)
        kept = await http.post(f"{site.url}/check", json=build_review())
        assert "connection" not in kept.headers
        site.signal(signal.SIGTERM)
        signaled = time.monotonic()
        while (await http.get(f"{site.probes}/readyz")).status_code == 200:
            assert time.monotonic() < signaled + 1
        readiness = await http.get(f"{site.probes}/readyz")
        assert readiness.json() == {"not ready": ["the operator is stopping"]}
        assert (await http.get(f"{site.probes}/livez")).status_code == 200
        served = 0
        while time.monotonic() < signaled + _DELAY - 0.3:
            answer = await http.post(f"{site.url}/check", json=build_review())
            assert answer.json()["response"]["allowed"] is True
            assert answer.headers["connection"] == "close"
            served += 1
        assert served > 10
        code = await site.command.wait_for_exit()
        assert time.monotonic() - signaled > _DELAY
        assert code in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
        assert "cleaned up" in site.command.output


@pytest.mark.parametrize("run", [run_webop, run_uvicorn])
async def test_what_is_in_flight_at_the_end_of_the_delay_is_answered(
    workshop: Workshop, http: httpx.AsyncClient, run: Run
) -> None:
    async with run(workshop, 0.5) as site:
        await site.wait_ready(http)
        posted = asyncio.create_task(
            http.post(f"{site.url}/slow", json=build_review(), timeout=_PATIENCE)
        )
        await site.command.wait_for("slow is called")
        site.signal(signal.SIGTERM)
        assert (await posted).json()["response"]["allowed"] is True
        await site.command.wait_for_exit()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("run", [run_webop, run_uvicorn])
async def test_ctrl_c_and_the_second_signal_do_not_wait(
    workshop: Workshop, http: httpx.AsyncClient, run: Run, first: signal.Signals
) -> None:
    async with run(workshop, 60) as site:
        await site.wait_ready(http)
        site.signal(first)
        if first is signal.SIGTERM:
            await site.wait_retiring(http)
            site.signal(first)
        async with asyncio.timeout(10):
            await site.command.wait_for_exit()


async def test_objects_are_left_to_others_while_webhooks_are_served_on(
    connected: Workshop, http: httpx.AsyncClient, objects: Objects
) -> None:
    handlers = f"""
@webop.on.create('{objects.kind.group}', 'v1', '{objects.kind.plural}')
def created(name, **_):
    print(f'created {{name}}', flush=True)
"""
    async with run_webop(connected, 2, f"--namespace={objects.namespace}", handlers) as site:
        await site.wait_ready(http)
        await objects.make("before")
        site.signal(signal.SIGTERM)
        await site.wait_retiring(http)
        await objects.create("after")
        answer = await http.post(f"{site.url}/check", json=build_review())
        assert answer.json()["response"]["allowed"] is True
        assert await site.command.wait_for_exit() == 0
    assert "created before" in site.command.output
    assert "created after" not in site.command.output
    assert not is_handled(await objects.get("after"))


async def test_a_signal_that_comes_while_a_handler_runs_stops_the_server_after_the_lease_ended(
    connected: Workshop, http: httpx.AsyncClient, objects: Objects
) -> None:
    handlers = f"""
import time

@webop.daemon('{objects.kind.group}', 'v1', '{objects.kind.plural}')
async def compute(stopped, **_):
    print('it computes', flush=True)
    while not stopped:
        time.sleep(0.02)
        await asyncio.sleep(0)
"""
    variables = {
        "WEBOP_NAMESPACES": objects.namespace,
        "WEBOP_PEERING__STANDALONE": "true",
        "WEBOP_LEADERSHIP__LEASE_NAME": "computing",
        "WEBOP_LEADERSHIP__LEASE_NAMESPACE": objects.namespace,
    }
    async with run_uvicorn(connected, 0.5, handlers, **variables) as site:
        await site.wait_ready(http)
        await objects.create("one")
        await site.command.wait_for("it computes")
        site.signal(signal.SIGTERM)
        async with asyncio.timeout(_PATIENCE):
            await site.command.wait_for_exit()
    assert "Released the lease" in site.command.output
    assert "cleaned up" in site.command.output
