"""The cost of an admission review: over TLS, on keep-alive connections, with distinct uids."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import Process, run_operator, run_process
from bench.reviews import ReviewLoad, build_review, find_free_port, make_certificate

if TYPE_CHECKING:
    from webop.servers.certificates.certs import KeyPair

_ALLOWED = b'"allowed":true'
_TURNS = 20
_FLOOR = Path(__file__).parents[1] / "floor.py"


async def _measure(bench: Bench, side: Side) -> Sample:
    pair, port = make_certificate(bench.workdir), find_free_port()
    load, plural = ReviewLoad(port, pair), bench.things.plural
    good, bad = build_review(plural, {}), build_review(plural, {"bad": True})
    update = build_review(plural, {}, is_update=True)
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(run_operator(bench, side, plural, extra=f"review:{port}"))
        await load.wait_until_served("/check", bad, b"This is bad.")
        await load.wait_until_served("/default", good, b'"patch"')
        targets = {
            "validating": _Target(operator, load, "/check", _ALLOWED),
            "mutating": _Target(operator, load, "/default", b'"patch"'),
        }
        if side.name == "webop":
            targets["floor"] = await _start_floor(bench, side, pair, stack)
        sample = await _take_turns(targets, good, bench.objects)
        before = operator.read_memory()
        await load.send("/check", update, _ALLOWED, count=2 * bench.objects)
        sample["rss_growth_mb"] = operator.read_memory() - before
        sample["rss_mb"] = operator.read_memory()
    return sample


class _Target(NamedTuple):
    """Where reviews go, and what the responses contain."""

    process: Process
    load: ReviewLoad
    path: str
    expected: bytes


async def _start_floor(
    bench: Bench, side: Side, pair: KeyPair, stack: contextlib.ExitStack
) -> _Target:
    port = find_free_port()
    argv = (side.python, "-m", "uvicorn", f"--port={port}", "--app-dir", str(_FLOOR.parent))
    more = ("--no-access-log", "--http=httptools", "--ssl-certfile=cert.pem")
    options = (*more, "--ssl-keyfile=key.pem", "--loop=auto", "floor:app")
    process = stack.enter_context(run_process(bench, (*argv, *options)))
    load, review = ReviewLoad(port, pair), build_review(bench.things.plural, {})
    await load.wait_until_served("/check", review, _ALLOWED)
    return _Target(process, load, "/check", _ALLOWED)


async def _take_turns(targets: dict[str, _Target], review: bytes, count: int) -> Sample:
    """Return microseconds of CPU per review of each target, after a warm-up.

    They take turns, so that what else the machine does costs all of them the same.
    """
    spent = dict.fromkeys(targets, 0.0)
    size = max(1, count // _TURNS)
    for turn in range(_TURNS + 1):
        for name, (process, load, path, expected) in targets.items():
            before = process.read_cpu()
            await load.send(path, review, expected, count=size)
            spent[name] += process.read_cpu() - before if turn else 0.0
    if not all(spent.values()):
        raise BenchError("Too few reviews to measure CPU time. Use more --objects.")
    figures = {name: ms * 1e3 / (size * _TURNS) for name, ms in spent.items()}
    sample = {f"{name}_cpu_us": figure for name, figure in figures.items()}
    if floor := figures.pop("floor", 0.0):
        sample |= {f"{name}_of_floor": figure / floor for name, figure in figures.items()}
    return sample


SCENARIO = Scenario(
    name="review",
    summary="admission reviews over TLS, 16 connections",
    measure=_measure,
    sizes=(20_000,),
)
