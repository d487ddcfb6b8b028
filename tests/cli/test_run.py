"""``webop run`` as users start it: with files, options and signals."""

from __future__ import annotations

import asyncio
import json
import signal

import httpx
import pytest

from tests.kit.operators import Objects
from tests.kit.processes import HANDLERS, PATIENCE, Command, Workshop, take_port
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port


@pytest.mark.feature("CLI-18", "STA-05", "STA-09", "CLI-01", "CLI-07", "LOG-11", "CLI-21")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=str)
@pytest.mark.usefixtures("default_hangup")
async def test_a_signal_ends_an_operator_with_code_0(
    connected: Workshop, objects: Objects, number: signal.Signals
) -> None:
    path = connected.write(HANDLERS)
    async with connected.start("-n", objects.namespace, path) as command:
        await objects.make("one")
        assert await command.stop(number) == 0
    assert f"[Widget {objects.namespace}/one] created one" in command.output
    assert "cleaned up" in command.output
    assert f"Stopping ({number.name})" in command.output
    assert "Traceback" not in command.output


async def test_an_operator_under_nohup_survives_its_terminal(workshop: Workshop) -> None:
    program = "import signal, webop.__main__; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    code = "import webop\n@webop.on.startup()\nasync def start(**_): ..."
    (workshop.folder / "nohup.py").write_text(f"{program}webop.__main__.main()")
    async with workshop.start_module(("nohup", "run"), "-A", workshop.write(code)) as command:
        await command.wait_for("'start' succeeded")
        command.process.send_signal(signal.SIGHUP)
        assert await command.stop(signal.SIGINT) == 0
    assert "Stopping (SIGINT)" in command.output


@pytest.mark.feature("STA-10")
@pytest.mark.parametrize("waiting", ["await asyncio.Event().wait()", "time.sleep(1000)"])
async def test_a_second_signal_ends_an_operator_at_once(workshop: Workshop, waiting: str) -> None:
    code = f"""
import asyncio, time, webop
@webop.on.startup()
async def start(**_): ...
@webop.on.cleanup()
async def clean(**_):
    print('cleaning', flush=True)
    {waiting}
"""
    async with workshop.start("-A", workshop.write(code)) as command:
        await command.wait_for("'start' succeeded")
        command.process.send_signal(signal.SIGINT)
        await command.wait_for("cleaning")
        assert await command.stop(signal.SIGINT) == 128 + signal.SIGINT


PROBES = """
import asyncio, webop
calls = 0

@webop.on.probe(id='count')
async def count(**_):
    global calls
    calls += 1
    await asyncio.sleep(0.2)
    return calls

@webop.on.probe(id='sync')
def sync(memo, settings, **_):
    return {'works': True}
"""


@pytest.mark.feature("PRB-01", "PRB-03", "PRB-04", "PRB-05", "PRB-06", "PRB-08", "PRB-10", "CLI-09")
async def test_probes_are_served_and_shared_by_those_who_ask_at_once(workshop: Workshop) -> None:
    port = find_free_port()
    url = f"http://127.0.0.1:{port}/my/healthz"
    async with workshop.start("-A", f"--liveness={url}", workshop.write(PROBES)) as command:
        responses = await ask(command, url, times=5)
        assert await command.stop() == 0
    assert {response.status_code for response in responses} == {200}
    assert [r.json() for r in responses] == [{"count": 1, "sync": {"works": True}}] * 5


@pytest.mark.feature("PRB-07")
async def test_the_probes_are_at_port_80_and_at_this_host_unless_the_url_says_otherwise(
    workshop: Workshop,
) -> None:
    with take_port() as port:  # so that it says where it cannot listen
        text = await workshop.fail("-A", f"--liveness=http://:{port}", workshop.write(PROBES))
        assert f"Cannot listen on localhost:{port}" in text
    async with workshop.start(
        "-A", "--liveness=http:///healthz", workshop.write(PROBES)
    ) as command:
        try:
            (response,) = await ask(command, "http://localhost:80/healthz", times=1)
            assert response.json()["sync"] == {"works": True}
        except AssertionError:  # not everybody may listen there, or somebody else does
            assert "Cannot listen on localhost:80" in command.output


async def ask(command: Command, url: str, *, times: int) -> list[httpx.Response]:
    """Ask for a URL so many times at once, as soon as there is somebody to answer."""
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        probe = url.rpartition("/")[0] + "/nothing-here"
        await eventually(
            lambda: http.get(probe), lambda: command.output, ignoring=httpx.ConnectError
        )
        return await asyncio.gather(*(http.get(url) for _ in range(times)))


@pytest.mark.feature("LOG-03", "LOG-04", "LOG-05", "LOG-06", "CLI-05", "CLI-06", "CLI-16", "LOD-02")
async def test_logs_can_be_json_with_everything_about_the_object(
    connected: Workshop, objects: Objects
) -> None:
    module = connected.write(HANDLERS).stem
    arguments = ("--log-format=json", "--log-refkey=k8s-obj", "--verbose", "-m", module)
    async with connected.start(*arguments, WEBOP_RUN_NAMESPACES=objects.namespace) as command:
        body = await objects.create("one")
        await objects.wait_handled("one")
        assert await command.stop() == 0
    lines = [json.loads(line) for line in command.output.splitlines()]
    assert all({"message", "severity", "timestamp"} <= line.keys() for line in lines)
    assert {"debug", "info"} <= {line["severity"] for line in lines}
    (line,) = (line for line in lines if line["message"] == "created one")
    assert line["k8s-obj"] == {
        "apiVersion": objects.resource.api_version,
        "kind": "Widget",
        "name": "one",
        "namespace": objects.namespace,
        "uid": body["metadata"]["uid"],
    }
