"""The operator of the comparison: one file for webop and for kopf, chosen by BENCH_SIDE.

It runs in the environment of its side, so it imports only the standard library otherwise.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or os.environ["BENCH_SIDE"] == "webop":
    import webop as kopf
else:
    import kopf

_WORKDIR = Path(os.environ["BENCH_WORKDIR"])
_EXTRA, _, _ARGUMENT = os.environ["BENCH_EXTRA"].partition(":")
_RECORD_BYTES = 20  # a line of the record of calls: a name, padded with spaces
_BUSY_SECONDS = 0.003
_TICKS_AT_ONCE = 500  # the file is written after that many
_latency = (_WORKDIR / "latency.txt").open("w", buffering=1)
_record = os.open(_WORKDIR / "record.txt", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
_calls = 0
_ticks = 0


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False
    write_calls()


_kind: Any = ("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"])

if _EXTRA == "typed" and os.environ["BENCH_SIDE"] == "webop":
    import pydantic

    class ThingSpec(pydantic.BaseModel):
        """The spec of the objects of the bench."""

        text: str = ""
        numbers: list[int] = pydantic.Field(default_factory=list)

    @kopf.resource("bench.webop.dev", "v1", plural=os.environ["BENCH_PLURAL"])
    class Thing(kopf.Model):
        """The kind of the bench."""

        spec: ThingSpec

    @kopf.on.create(Thing, id="handle")
    async def handle_typed(name: str | None, spec: ThingSpec, **_: Any) -> None:
        await handle(name, spec.model_dump())

    _kind = (lambda _: False,)  # the model takes its place

if _EXTRA == "children" and os.environ["BENCH_SIDE"] == "webop":

    @kopf.reconcile(*_kind, owns=["configmaps"])
    async def build(name: str, spec: kopf.Spec, children: kopf.Children, **_: Any) -> None:
        global _calls  # noqa: PLW0603 - the cheapest counter
        _calls += 1
        data = {"image": spec["image"], "replicas": str(spec["replicas"])}
        for part in "ab":
            metadata = {"name": f"{name}-{part}", "labels": {"app": "bench"}}
            child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            await children.apply(child)

    _kind = (lambda _: False,)  # the reconciler takes its place


@kopf.on.create(*_kind)
async def handle(name: str | None, spec: Any, **_: Any) -> None:
    global _calls  # noqa: PLW0603 - the cheapest counter
    _calls += 1
    if "sent" in spec:
        _latency.write(f"{spec['sent']} {time.time_ns()}\n")
    if _EXTRA == "busy":
        until = time.thread_time() + _BUSY_SECONDS
        while time.thread_time() < until:
            pass
    if _EXTRA == "record":  # at once, to a file, so that a kill loses no call
        os.write(_record, f"{name:<{_RECORD_BYTES - 1}}\n".encode())
        last = int(_ARGUMENT) * _RECORD_BYTES
        if last and os.fstat(_record).st_size >= last:
            os.kill(os.getpid(), signal.SIGKILL)


if _EXTRA == "update":

    @kopf.on.update("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"])
    async def follow(spec: kopf.Spec, **_: Any) -> None:
        _latency.write(f"{spec['sent']} {time.time_ns()}\n")


if _EXTRA == "resume":

    @kopf.on.resume("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"])
    async def resume(**_: Any) -> None: ...


if _EXTRA == "three":

    @kopf.on.create("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"], id="second")
    @kopf.on.create("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"], id="third")
    async def assist(**_: Any) -> None: ...


if _EXTRA == "timer":

    @kopf.timer("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"], interval=1)
    async def tick(**_: Any) -> None:
        global _ticks  # noqa: PLW0603 - the cheapest counter
        _ticks += 1
        if _ticks % _TICKS_AT_ONCE == 0:
            (_WORKDIR / "ticks.txt").write_text(str(_ticks))


if _EXTRA == "daemon":

    @kopf.daemon("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"])
    async def accompany(stopped: kopf.DaemonStopped, **_: Any) -> None:
        await stopped.wait()


if _EXTRA == "review":

    @kopf.on.startup()
    async def serve(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.admission.server = kopf.WebhookServer(
            addr="127.0.0.1",
            port=int(_ARGUMENT),
            certfile=str(_WORKDIR / "cert.pem"),
            pkeyfile=str(_WORKDIR / "key.pem"),
        )

    @kopf.on.validate("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"])
    async def check(spec: kopf.Spec, **_: Any) -> None:
        if spec.get("bad"):
            raise kopf.AdmissionError("This is bad.", code=400)

    @kopf.on.mutate("bench.webop.dev", "v1", os.environ["BENCH_PLURAL"])
    async def default(spec: kopf.Spec, patch: kopf.Patch, **_: Any) -> None:
        if "numbers" not in spec:
            patch.spec["numbers"] = [1, 2, 3]


@kopf.on.cleanup()
async def conclude(**_: Any) -> None:
    write_calls()


def write_calls() -> None:
    (_WORKDIR / "calls.txt").write_text(str(_calls))
