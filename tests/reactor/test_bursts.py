"""Many objects at once: handlers do not run ahead of what is written, and nothing else waits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.commands import Workshop
from tests.operating import Objects, RunOperator, build_settings, eventually

_HANDLERS = """
import os
import webop

log = os.open({log!r}, os.O_APPEND | os.O_CREAT | os.O_WRONLY)


@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False


@webop.on.create("widgets")
{def_} handle(name, **_):
    os.write(log, (name + "\\n").encode())
"""


@pytest.mark.feature("CON-04", "EVT-12")
@pytest.mark.parametrize("def_", ["def", "async def"])
async def test_a_kill_in_the_middle_of_a_burst_repeats_only_what_was_being_written(
    objects: Objects, workshop: Workshop, webop_kubeconfig: Path, tmp_path: Path, def_: str
) -> None:
    log = tmp_path / "calls.txt"
    log.touch()
    handlers = workshop.write(_HANDLERS.format(log=str(log), def_=def_))
    await asyncio.gather(*(objects.create(f"w{number}") for number in range(400)))
    options = ("--standalone", "-n", objects.namespace, handlers)
    variables = {"KUBECONFIG": str(webop_kubeconfig)}
    async with workshop.start(*options, **variables) as operator:
        await eventually(lambda: len(log.read_text().split()) >= 300, timeout=40)
        await operator.stop(signal.SIGKILL)
    assert len(log.read_text().split()) < 400, "it was not in the middle"
    async with workshop.start(*options, **variables):
        await eventually(lambda: len(set(log.read_text().split())) == 400, timeout=40)
        await objects.wait_handled("w399")
    counts = Counter(log.read_text().split())
    assert sum(counts.values()) - 400 <= 64


@pytest.mark.feature("HND-26", "EVT-12")
async def test_a_slow_handler_of_events_does_not_delay_changes(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects
) -> None:
    delays: list[float] = []

    @webop.on.event("widgets", registry=registry, id="slow")
    async def slow(**_: Any) -> None:
        await asyncio.sleep(0.2)

    @webop.on.update("widgets", registry=registry, field="spec.sent", id="fn")
    async def fn(new: float, **_: Any) -> None:
        delays.append(time.time() - new)

    async with run_operator():
        await objects.create("a", {"sent": 0})
        await objects.wait_handled("a")
        for _ in range(60):
            await objects.patch("a", {"spec": {"sent": time.time()}})
            await asyncio.sleep(0.05)
        await objects.wait_handled("a")
    assert len(delays) > 30
    assert max(delays) < 2, "twenty events a second take four seconds to be shown"


@pytest.mark.feature("ASY-01", "EVT-12")
async def test_handlers_that_sleep_are_not_limited_in_number(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects
) -> None:
    sleeping: set[str] = set()
    woken = asyncio.Event()

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(name: str, **_: Any) -> None:
        sleeping.add(name)
        await woken.wait()

    async with run_operator():
        await asyncio.gather(*(objects.create(f"w{number}") for number in range(200)))
        await eventually(lambda: len(sleeping) == 200, "all sleep at once")
        woken.set()
        for number in range(200):
            await objects.wait_handled(f"w{number}")


@pytest.mark.feature("CFG-52", "EVT-12")
async def test_handlers_do_not_run_on_while_no_write_succeeds(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    webop_namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A quota of an aggregated API, a webhook that is down: patches fail, all else works."""
    called: set[str] = set()

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(name: str, **_: Any) -> None:
        called.add(name)

    async with contextlib.AsyncExitStack() as stack:
        broken = await stack.enter_async_context(_break_updates(objects))
        for number in range(300):
            await objects.create(f"w{number}")
        settings = build_settings(networking={"error_backoffs": [0.2], "request_timeout": 5})
        async with run_operator(settings):
            await eventually(lambda: "no more handlers are called" in caplog.text)
            await asyncio.sleep(1)
            assert len(called) < 60
            await broken.aclose()
            await eventually(lambda: len(called) == 300, timeout=60)
            await objects.wait_handled("w299")
    assert "works again" in caplog.text


@contextlib.asynccontextmanager
async def _break_updates(objects: Objects) -> Any:
    """Have all updates of the objects fail with 500: their webhook cannot be reached."""
    name = f"broken-{objects.namespace}"
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    rule = {
        "apiGroups": [objects.resource.group],
        "apiVersions": ["*"],
        "resources": [objects.resource.plural],
        "operations": ["UPDATE"],
    }
    webhook = {
        "name": "broken.webop.dev",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": objects.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
    }
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
    await objects.client.request("POST", path, body=body)
    stack = contextlib.AsyncExitStack()
    stack.push_async_callback(objects.client.request, "DELETE", f"{path}/{name}")
    try:
        yield stack
    finally:
        await stack.aclose()
