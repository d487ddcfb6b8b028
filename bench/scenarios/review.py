"""The cost of an admission review: over TLS, on keep-alive connections, with distinct uids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.model import Bench, BenchError, Sample, Scenario, Side
from bench.operators import Process, run_operator, run_process
from bench.reviews import ReviewLoad, build_review, find_free_port, make_certificate

if TYPE_CHECKING:
    from webop.servers.certificates.certs import KeyPair

_ALLOWED = b'"allowed":true'
_FLOOR = Path(__file__).parents[1] / "floor.py"


async def _measure(bench: Bench, side: Side) -> Sample:
    pair, port = make_certificate(bench.workdir), find_free_port()
    sample = await _measure_operator(bench, side, pair, port)
    if side.name == "webop":
        sample["floor_cpu_us"] = await _measure_floor(bench, side, pair)
    return sample


async def _measure_operator(bench: Bench, side: Side, pair: KeyPair, port: int) -> Sample:
    load, plural = ReviewLoad(port, pair), bench.things.plural
    good, bad = build_review(plural, {}), build_review(plural, {"bad": True})
    update = build_review(plural, {}, is_update=True)
    with run_operator(bench, side, plural, extra=f"review:{port}") as operator:
        await load.wait_until_served("/check", bad, b"This is bad.")
        await load.wait_until_served("/default", good, b'"patch"')
        sample = {
            "validating_cpu_us": await _time(operator, load, "/check", good, _ALLOWED, bench),
            "mutating_cpu_us": await _time(operator, load, "/default", good, b'"patch"', bench),
        }
        before = operator.read_memory()
        await load.send("/check", update, _ALLOWED, count=2 * bench.objects)
        sample["rss_growth_mb"] = operator.read_memory() - before
        sample["rss_mb"] = operator.read_memory()
    return sample


async def _measure_floor(bench: Bench, side: Side, pair: KeyPair) -> float:
    port = find_free_port()
    argv = (side.python, "-m", "uvicorn", f"--port={port}", "--app-dir", str(_FLOOR.parent))
    more = ("--no-access-log", "--http=httptools", "--ssl-certfile=cert.pem")
    options = (*more, "--ssl-keyfile=key.pem", "--loop=auto", "floor:app")
    with run_process(bench, (*argv, *options)) as process:
        load, review = ReviewLoad(port, pair), build_review(bench.things.plural, {})
        await load.wait_until_served("/check", review, _ALLOWED)
        return await _time(process, load, "/check", review, _ALLOWED, bench)


async def _time(
    process: Process, load: ReviewLoad, path: str, review: bytes, expected: bytes, bench: Bench
) -> float:
    """Return microseconds of CPU per review, after a warm-up."""
    await load.send(path, review, expected, count=bench.objects // 10)
    before = process.read_cpu()
    await load.send(path, review, expected, count=bench.objects)
    spent = process.read_cpu() - before
    if not spent:
        raise BenchError("Too few reviews to measure CPU time. Use more --objects.")
    return spent * 1e3 / bench.objects


SCENARIO = Scenario(
    name="review",
    summary="admission reviews over TLS, 16 connections",
    measure=_measure,
    sizes=(20_000,),
)
