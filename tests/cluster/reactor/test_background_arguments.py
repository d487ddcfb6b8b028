"""What daemons and timers are called with besides what all handlers of objects get."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import webop
from tests.kit.operators import Objects, RunOperator
from tests.kit.waiting import eventually


class Flags:
    """The flags that handlers have been called with, in the loop or in threads."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        self.in_loop: set[str] = set()

    def note(self, handler: str, name: str, kwargs: dict[str, Any]) -> None:
        """Take note of a call about the object of interest."""
        if name == "one":
            flag = kwargs.get("stopped")
            assert not flag, f"{handler} begins with the flag raised"
            self.of[handler] = flag
            if threading.current_thread() is threading.main_thread():
                self.in_loop.add(handler)


@pytest.mark.feature("KWA-16", "DMN-04", "DMN-06", "DMN-07")
async def test_daemons_and_timers_are_told_when_to_stop_and_nobody_else(
    run_operator: RunOperator, objects: Objects
) -> None:
    flags = Flags()

    @webop.daemon("widgets", id="daemon")
    async def daemon(name: str, stopped: webop.DaemonStopped, **_: Any) -> None:
        flags.note("daemon", name, {"stopped": stopped})
        await stopped.wait(1000)

    @webop.daemon("widgets", id="sync daemon")
    def sync_daemon(name: str, stopped: webop.DaemonStopped, **_: Any) -> None:
        flags.note("sync daemon", name, {"stopped": stopped})
        stopped.wait(1000)

    @webop.timer("widgets", id="timer", interval=1000)
    async def timer(name: str, **kwargs: Any) -> None:
        flags.note("timer", name, kwargs)

    @webop.timer("widgets", id="sync timer", interval=1000)
    def sync_timer(name: str, **kwargs: Any) -> None:
        flags.note("sync timer", name, kwargs)

    @webop.on.create("widgets", id="create")
    async def create(name: str, **kwargs: Any) -> None:
        flags.note("create", name, kwargs)

    async with run_operator():
        await objects.create("one")
        await eventually(lambda: len(flags.of) == 5, "everything is called")
        assert not any(flags.of.values())
    assert flags.of.pop("create") is None
    assert flags.in_loop == {"daemon", "timer", "create"}
    for key, flag in flags.of.items():
        is_sync = key.startswith("sync")
        assert isinstance(flag, webop.SyncDaemonStopperChecker) is is_sync
        assert isinstance(flag, webop.AsyncDaemonStopperChecker) is not is_sync
        assert flag.is_set(webop.DaemonStoppingReason.OPERATOR_EXITING)
