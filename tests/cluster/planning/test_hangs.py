"""``webop plan`` ends, whatever the functions of the user do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from tests.kit.plans import UNKNOWN, Desk

STUBBORN = """
        import asyncio, threading

        async def ignore_cancellation():
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass
"""


@pytest.mark.timeout(150)
async def test_a_plan_ends_with_calls_threads_and_tasks_that_never_do(desk: Desk) -> None:
    desk.write(
        STUBBORN
        + """
        @webop.on.startup()
        async def start(**_):
            global task
            task = asyncio.create_task(ignore_cancellation())
            threading.Thread(target=threading.Event().wait).start()

        @webop.reconcile('kiosks')
        async def swallow(name, **_):
            if name == 'swallow':
                await ignore_cancellation()

        @webop.reconcile('kiosks')
        def block(name, **_):
            if name == 'block':
                threading.Event().wait()
    """
    )
    for name in ("swallow", "block"):
        await desk.objects.create(name)
    planned = await asyncio.wait_for(desk.plan("--call"), 100)
    assert (planned.code, planned.document["startup"]) == (2, ["configure", "start"])
    for name in ("swallow", "block"):
        expected = UNKNOWN, "it did not end within 60 s"
        assert planned.certainty("continue", name, name) == expected


async def test_an_interrupt_ends_the_plan_at_once(desk: Desk) -> None:
    desk.write("""
        import sys, threading

        @webop.reconcile('kiosks')
        def block(**_):
            print('blocked', flush=True)
            threading.Event().wait()
    """)
    await desk.objects.create("one")
    path, config = desk.workshop.folder / "my_handlers.py", {"KUBECONFIG": str(desk.planner)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "webop", "plan", "--call", "-n", desk.namespace, str(path)),
        cwd=desk.workshop.folder,
        env={**os.environ, **config, "CALLS": str(desk.workshop.folder / "calls.jsonl")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    await asyncio.wait_for(process.stderr.readuntil(b"blocked"), 60)
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, b"Aborted!" in errors) == (1, True)
