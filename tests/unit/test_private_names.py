"""Private names of other projects that webop uses, since there is no public way.

When one of them changes, the row here fails: then its use in webop must change, too. Names that
begin with an underscore but are documented, such as ``os._exit``, are not private.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


async def _never() -> None: ...


@contextmanager
def make(kind: str) -> Iterator[Any]:
    """Make an object of a class of another project."""
    loop = asyncio.new_event_loop()
    coroutine = _never()
    made: dict[str, Any] = {
        "asyncio.events": asyncio.events,
        "BaseEventLoop": loop,
        "Handle": asyncio.Handle(print, (), loop, None),
        "Task": asyncio.Task(coroutine, loop=loop),
        "ThreadPoolExecutor": concurrent.futures.ThreadPoolExecutor(7),
        "TracebackException": traceback.TracebackException(ValueError, ValueError("a"), None),
    }
    loop.run_until_complete(made["Task"])
    yield made[kind]
    loop.close()


LOOP, WORLD = "webop.testing.simulation.virtual_loop", "webop.testing.simulation.world"


@pytest.mark.parametrize(
    ("owner", "name", "expected", "user", "why"),
    [
        ("ThreadPoolExecutor", "_max_workers", int, "webop.settings.thread_pools", "Kopf shows it"),
        ("TracebackException", "_str", str, "webop.logs.formats", "to escape one of several"),
        ("Task", "_log_destroy_pending", bool, WORLD, "tasks of killed replicas are no mistake"),
        # A loop of virtual time decides what is done next.
        ("asyncio.events", "_set_running_loop", callable, LOOP, "to take single steps"),
        ("BaseEventLoop", "_ready", list, LOOP, "what is due"),
        ("BaseEventLoop", "_stopping", bool, LOOP, "the end of run_forever()"),
        ("BaseEventLoop", "_default_executor", None, LOOP, "simulated threads; close() ends them"),
        ("BaseEventLoop", "_run_once", callable, LOOP, "run_forever() calls it"),
        ("BaseEventLoop", "_write_to_self", callable, LOOP, "call_soon_threadsafe() calls it"),
        (
            "BaseEventLoop",
            "_timer_handle_cancelled",
            callable,
            LOOP,
            "cancel() of a timer calls it",
        ),
        ("BaseEventLoop", "_process_events", callable, LOOP, "it is abstract"),
        ("Handle", "_context", None, LOOP, "whose it is; get_context() needs Python 3.12"),
        ("Handle", "_run", callable, LOOP, "to do it"),
    ],
)
def test_a_private_name_is_as_webop_uses_it(
    owner: str, name: str, expected: Any, user: str, why: str
) -> None:
    assert name in inspect.getsource(importlib.import_module(user)), f"Remove the row ({why})."
    with make(owner) as thing:
        found = getattr(thing, name)
        if expected is callable:
            assert callable(found)
        elif expected is list:
            assert callable(found.append)
            assert callable(found.popleft)
        elif isinstance(expected, type):
            assert isinstance(found, expected)
