"""Sends the same requests to both servers, and collects where their answers differ."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from webop.testing.apiserver import Request

from .drawing import CUSTOM, Drawing, build_crd
from .requests import CRDS, MERGE_PATCH, Drawn, build_request
from .sides import EventStream, Memory, RealSide, Side, SimulatedSide, reduce

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_ENOUGH = 10
_WATCHES = 12  # open at once, at most
_PATIENCE = 5.0  # seconds, for events of the real server


@dataclass(frozen=True)
class Difference:
    number: int
    request: Any
    real: Any
    simulated: Any

    def __str__(self) -> str:
        real, simulated = reduce(self.real, self.simulated)
        return f"#{self.number} {self.request}\n   real: {real}\n    sim: {simulated}"


_OpenWatch = tuple[Drawn, int, EventStream, EventStream]


def compare(cluster: LocalCluster, seed: int, count: int) -> Conformance:
    """Send so many requests to both servers; return what differs.

    Nothing else may write the kinds of the comparison in the cluster.
    """
    conformance = Conformance(cluster, seed)
    try:
        conformance.run(count)
    finally:
        conformance.close()
    return conformance


class Conformance:
    """Both servers, prepared with the same kinds and namespaces."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.real = RealSide(cluster)
        self.simulated = SimulatedSide(seed)
        self.differences: list[Difference] = []
        self.requests = self.events = self.watches = 0
        run = f"like-{time.time_ns() // 1_000_000:x}"
        self._namespaces = (f"{run}-1", f"{run}-2")
        self._drawing = Drawing(random.Random(seed), self._namespaces)
        self._memories: dict[Side, Memory] = {self.real: Memory(), self.simulated: Memory()}
        self._open: list[_OpenWatch] = []
        self._prepare()

    def run(self, count: int) -> None:
        for _ in range(count):
            if len(self.differences) >= _ENOUGH:
                break  # one difference brings others
            self.requests += 1
            drawn = self._drawing.draw()
            if drawn.is_watch:
                self._watch(drawn)
            else:
                self._send(drawn)
        while self._open:
            self._finish(self._open.pop(0))

    def close(self) -> None:
        """Remove what was made in the real cluster, but for the kinds."""
        self._clear()
        for namespace in self._namespaces:
            self._ask("DELETE", f"/api/v1/namespaces/{namespace}")
        self.real.close()

    def _ask(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        """Ask the real server alone."""
        return self.real.send(build_request(method, path, body, **query))

    def _prepare(self) -> None:
        bodies = [(CRDS, build_crd(place)) for place in CUSTOM]
        bodies += [
            ("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": name}})
            for name in self._namespaces
        ]
        for path, body in bodies:
            self._ask("POST", path, body)
            self.simulated.send(build_request("POST", path, body))
        for place in CUSTOM:
            while self._ask("GET", place.build_path(""))[0] != 200:
                time.sleep(0.05)

    def _clear(self) -> None:
        """Remove the webhooks and the objects of the comparison."""
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        self._ask("DELETE", f"{path}/{self._namespaces[0]}-hook")
        release = {"metadata": {"finalizers": None}}
        for place in CUSTOM:
            for raw in self._ask("GET", place.build_path(""))[1]["items"]:
                namespace = raw["metadata"].get("namespace", "")
                path = place.build_path(namespace, raw["metadata"]["name"])
                self.real.send(build_request("PATCH", path, release, MERGE_PATCH))
                self._ask("DELETE", path)

    def _send(self, drawn: Drawn) -> None:
        answers = {}
        for side, memory in self._memories.items():
            status, body = side.send(memory.build(drawn))
            memory.take(drawn.resource, status, body)
            answers[side] = memory.normalise(status, body)
        self._compare(self.requests, drawn, answers[self.real], answers[self.simulated])

    def _watch(self, drawn: Drawn) -> None:
        self.watches += 1
        self._refresh(drawn)
        opened, answers = list[EventStream](), []
        for side, memory in self._memories.items():
            answer = side.watch(memory.build(drawn))
            if isinstance(answer, tuple):
                answers.append(memory.normalise(*answer))
            else:
                answers.append("stream")
                opened.append(answer)
        if len(opened) < 2:
            self._compare(self.requests, drawn, *answers)
            for stream in opened:
                stream.close()
            return
        real, simulated = opened
        self._open.append((drawn, self.requests, real, simulated))
        if len(self._open) > _WATCHES:
            self._finish(self._open.pop(0))

    def _finish(self, watch: _OpenWatch) -> None:
        """Compare what has come until now."""
        drawn, number, real, simulated = watch
        wanted = self._read(self.simulated, simulated)
        deadline = time.monotonic() + _PATIENCE
        while len(found := self._read(self.real, real)) < len(wanted):
            if time.monotonic() > deadline:
                break
            time.sleep(0.002)
        self.events += len(found)
        for index, pair in enumerate(itertools.zip_longest(found, wanted)):
            if _write(pair[0]) != _write(pair[1]):
                self._compare(number, f"{drawn}: event {index}", *pair)
                break
        real.close()
        simulated.close()

    def _read(self, side: Side, stream: EventStream) -> list[Any]:
        """Return the events, without the bookmarks of the real server's own choice."""
        memory = self._memories[side]
        events = [memory.normalise_event(event) for event in list(stream.events)]
        return [
            event
            for event in events
            if side is self.simulated or event[0] != "BOOKMARK" or event[2]
        ]

    def _refresh(self, drawn: Drawn) -> None:
        """Wait until the watch cache of the real server has everything: a list does that."""
        self.real.send(Request("GET", drawn.path))

    def _compare(self, number: int, request: Any, real: Any, simulated: Any) -> None:
        if _write(real) != _write(simulated):
            self.differences.append(Difference(number, request, real, simulated))


def _write(value: Any) -> bytes:
    """Return it as JSON: to Python, true is 1."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
