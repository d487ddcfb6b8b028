"""The watchdog bites when something goes on beyond the end of a lease, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from webop.aio.work_deadline import Fence
from webop.coordination.watchdog import Watchdog


class Kennel:
    """A watchdog with a fence, and how often it has bitten."""

    def __init__(self) -> None:
        self.fence = Fence()
        self.bitten = threading.Semaphore(0)
        self.watchdog = Watchdog(self.fence, self.bitten.release)

    def has_bitten(self, timeout: float) -> bool:
        return self.bitten.acquire(timeout=timeout)


@pytest.fixture
def kennel() -> Iterator[Kennel]:
    kennel = Kennel()
    kennel.fence.ends_at = kennel.fence.clock() + 0.2
    kennel.watchdog.start()
    yield kennel
    kennel.watchdog.stop()


def test_it_bites_once_when_a_thread_is_at_work_after_the_end(kennel: Kennel) -> None:
    call: Future[Any] = Future()
    kennel.fence.count(call)
    assert kennel.has_bitten(5)
    assert kennel.fence.rest < 0
    assert not kennel.has_bitten(0.3)
    call.set_result(None)
    assert not kennel.fence.threads


def test_it_bites_when_the_loop_is_blocked_in_the_middle_of_a_step(kennel: Kennel) -> None:
    kennel.fence.is_in_step = True
    assert kennel.has_bitten(5)
    assert kennel.fence.rest < 0


def test_it_does_not_bite_when_all_has_ended_in_time(kennel: Kennel) -> None:
    call: Future[Any] = Future()
    kennel.fence.count(call)
    kennel.fence.is_in_step = True
    time.sleep(0.05)
    call.set_result(None)
    kennel.fence.is_in_step = False
    assert not kennel.has_bitten(0.5)


def test_it_does_not_bite_as_long_as_the_end_is_put_off(kennel: Kennel) -> None:
    kennel.fence.count(Future())
    kennel.fence.is_in_step = True
    for _ in range(5):
        time.sleep(0.1)
        kennel.fence.ends_at = kennel.fence.clock() + 0.2
    assert not kennel.has_bitten(0)
    assert kennel.has_bitten(5)


def test_it_does_not_bite_any_more_when_it_is_called_off(kennel: Kennel) -> None:
    kennel.fence.count(Future())
    kennel.watchdog.stop()
    assert not kennel.has_bitten(0.4)
