"""The decorator of tests in virtual time: one run for each seed."""

from __future__ import annotations

import concurrent.futures
import contextvars
import dataclasses
import datetime as dt
import functools
import inspect
import os
import shlex
import sys
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from webop.aio.concurrency import find_running_loop
from webop.controlplane.cluster_client import read_manifest
from webop.testing.simulation.simulated_cluster import SimulatedCluster
from webop.testing.simulation.sources import Source, Sources
from webop.testing.simulation.world import Setup, World

if TYPE_CHECKING:
    from webop.controlplane.cluster_client import Manifest

Test = Callable[..., Any]

_SEED = "WEBOP_SEED"
_NOTHING: Mapping[str, object] = MappingProxyType({})
_NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def simulated(
    *handlers: Source,
    given: Iterable[Manifest] = (),
    seeds: int = 1,
    faults: bool = True,
    now: dt.datetime = _NOW,
    replicas: int = 1,
    replace: Mapping[str, object] = _NOTHING,
) -> Callable[[Test], Callable[..., None]]:
    """Run a test in virtual time, with whole operators on an API server in memory.

    ::

        @webop.testing.simulated("backups.handlers", given=[Database, NIGHTLY], seeds=200)
        def test_a_backup_is_made_each_night(cluster):
            cluster.advance(hours=26)
            assert len(cluster.list("jobs")) == 1
            cluster.kill()  # in the middle of anything
            cluster.fail("PATCH", "databases", status=500, times=3)
            cluster.restart()
            cluster.settle()  # until nothing is left to do; fails if that never comes

    The test is a plain function with an argument ``cluster``: a :class:`SimulatedCluster`. It runs
    once for each seed. The first run (seed 0) has short delays, and nothing goes wrong but what the
    test orders. In the others, chance decides about delays, requests that fail or are lost, watches
    that are cut, and kills of the operator, after which it is started again: all that a cluster
    does. A failure names the seed, and the line that runs the test with it again.

    See docs/howto/testing_simulated.md.

    Args:
        handlers: modules ("backups.handlers"), files, or functions that declare handlers. They are
            imported (called) at each start of the operator.
        given: what exists at the start, as for ``FakeClient``.
        seeds: the number of runs.
        faults: whether things go wrong by chance; else, seeds differ in delays only.
        now: the time at the start, with a time zone.
        replicas: how many replicas run; more than one use a Lease.
        replace: what attributes of the operator's modules are instead, as
            ``{"backups.storage.upload": fake}``. A patch from outside is lost at each start.

    Raises:
        TypeError: the function has no argument ``cluster``, or is async.
        ValueError: ``now`` has no time zone, or there are no seeds or replicas.
    """
    if now.utcoffset() is None:
        raise ValueError(f"now= must be a datetime with a time zone, got {now!r}.")
    for name, count in (("seeds", seeds), ("replicas", replicas)):
        if count < 1:
            raise ValueError(f"{name}= must be at least 1, got {count}.")
    manifests = [*given]

    @functools.cache
    def build_setup() -> Setup:
        # Once for all seeds: the definition of a large class takes longer than the start.
        bodies = [body for each in manifests for body in read_manifest(each)]
        return Setup(bodies, now.astimezone(dt.UTC), replicas, faults)

    def decorate(test: Test) -> Callable[..., None]:
        signature = inspect.signature(test)
        if inspect.iscoroutinefunction(test):
            raise TypeError(f"{test.__qualname__}() must not be async: time goes on as it waits.")
        if "cluster" not in signature.parameters:
            raise TypeError(f"{test.__qualname__}() must have an argument `cluster`.")

        others = [one for name, one in signature.parameters.items() if name != "cluster"]
        visible = signature.replace(parameters=others)

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            arguments = visible.bind(*args, **kwargs).arguments
            for seed in _choose_seeds(seeds):
                _run_outside_of_loops(functools.partial(run_once, seed, arguments))

        def run_once(seed: int, arguments: Mapping[str, Any]) -> None:
            __tracebackhide__ = True
            chosen = dataclasses.replace(build_setup(), is_replayed=bool(os.environ.get(_SEED)))
            world = World(seed, Sources((_locate(one, test) for one in handlers), replace), chosen)
            whole: Any = {**arguments, "cluster": SimulatedCluster(world)}
            bound = inspect.BoundArguments(signature, whole)
            try:
                with world.living():
                    test(*bound.args, **bound.kwargs)
                    world.check()
            except BaseException as exc:  # also pytest.fail()
                exc.add_note(_explain(world, test, bound.args))
                raise

        result: Any = run
        result.__signature__ = visible
        del result.__wrapped__  # pytest would look for a fixture
        return run

    return decorate


def _run_outside_of_loops(call: Callable[[], None]) -> None:
    """Call a function here, or in a thread if an event loop runs here."""
    __tracebackhide__ = True
    if find_running_loop() is None:
        call()
        return
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(contextvars.copy_context().run, call).result()


def _choose_seeds(count: int) -> Sequence[int]:
    text = os.environ.get(_SEED)
    if not text:
        return range(count)
    if not text.isdecimal():
        raise ValueError(f"{_SEED} must be the number of a seed, got {text!r}.")
    return [int(text)]


def _locate(source: Source, test: Test) -> Source:
    """Return a source; a file as seen from the folder of the test, if it is there."""
    if not isinstance(source, str | Path):
        return source
    beside = Path(inspect.getfile(test)).resolve().parent / source
    return beside if beside.is_file() else source


def _explain(world: World, test: Test, args: Sequence[Any]) -> str:
    command = _find_command(test, args)
    earlier = [line for line in world.blows if line not in world.story]
    blows = ["Failures before:", *(f"  {line}" for line in earlier)] if earlier else []
    lines = [
        f"Seed {world.seed}. To run it again: {_SEED}={world.seed} {command}",
        f"It happened at {world.ended_at:%Y-%m-%d %H:%M:%S} of the simulation.",
        *blows,
        "The last steps (all of them, if you run it again):",
        *(f"  {line}" for line in world.story),
    ]
    return "\n".join(lines)


def _find_command(test: Test, args: Sequence[Any]) -> str:
    """Return the command that runs a test again, for a shell."""
    _, separator, name = (
        os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("::")
    )
    if separator:
        file = os.path.relpath(inspect.getfile(test))
        return f"pytest {shlex.quote(f'{file}::{name}')}"
    if args and isinstance(args[0], unittest.TestCase):
        module, _, name = args[0].id().partition(".")
        if module == "__main__":
            return f"python {shlex.quote(sys.argv[0])} {name}"
        return f"python -m unittest {module}.{name}"
    return f"(the test {test.__qualname__})"
