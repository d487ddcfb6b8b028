"""Sends the same requests to both servers, and collects where their answers differ."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from tests.simulation.cluster import Request

from .drawing import CUSTOM, Drawing, Drawn, build_crd
from .sides import EventStream, Memory, RealSide, Side, SimulatedSide

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ENOUGH = 10
_WATCHES = 12  # open at once, at most
_PATIENCE = 5.0  # seconds, for events of the real server


@dataclass(frozen=True)
class Difference:
    """Two answers that are not alike."""

    number: int
    request: Any
    real: Any
    simulated: Any

    def __str__(self) -> str:
        real, simulated = _reduce(self.real, self.simulated)
        return f"#{self.number} {self.request}\n   real: {real}\n    sim: {simulated}"


@dataclass
class _OpenWatch:
    drawn: Drawn
    number: int
    real: EventStream
    simulated: EventStream


class Likeness:
    """Both servers, prepared with the same kinds and namespaces.

    Args:
        cluster: the real one; nothing else writes the kinds of the comparison in it.
        seed: of the requests.
    """

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.real = RealSide(cluster)
        self.simulated = SimulatedSide(seed)
        self.differences: list[Difference] = []
        self.requests = self.events = self.watches = 0
        self.trace: str | None = None
        run = f"like-{time.time_ns() // 1_000_000:x}"
        self._namespaces = (f"{run}-1", f"{run}-2")
        self._drawing = Drawing(random.Random(seed), self._namespaces)
        self._memories: dict[Side, Memory] = {self.real: Memory(), self.simulated: Memory()}
        self._open: list[_OpenWatch] = []
        self._prepare()

    def run(self, count: int) -> list[Difference]:
        """Send so many requests to both; return all differences."""
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
        return self.differences

    def close(self) -> None:
        """Remove what was made in the real cluster, but for the kinds."""
        for namespace in self._namespaces:
            self.real.send(Request("DELETE", f"/api/v1/namespaces/{namespace}"))
        self.real.send(
            Request(
                "DELETE",
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"
                f"{self._namespaces[0]}-hook",
            )
        )
        self._clear()
        self.real.close()

    def _prepare(self) -> None:
        headers = {"content-type": "application/json"}
        bodies = [(_CRDS, build_crd(place)) for place in CUSTOM]
        bodies += [
            ("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": name}})
            for name in self._namespaces
        ]
        for path, body in bodies:
            request = Request("POST", path, {}, headers, orjson.dumps(body))
            self.real.send(request)
            self.simulated.send(request)
        for place in CUSTOM:
            while self.real.send(Request("GET", place.build_path("")))[0] != 200:
                time.sleep(0.05)
        self._clear()

    def _clear(self) -> None:
        """Remove objects of earlier comparisons."""
        headers = {"content-type": "application/merge-patch+json"}
        release = orjson.dumps({"metadata": {"finalizers": None}})
        for place in CUSTOM:
            _, body = self.real.send(Request("GET", place.build_path("")))
            for raw in body["items"]:
                metadata = raw["metadata"]
                path = place.build_path(metadata.get("namespace", ""), metadata["name"])
                if metadata.get("finalizers"):
                    # In a namespace that is gone, nothing can be patched.
                    self._create_namespace(metadata.get("namespace", "default"))
                    self.real.send(Request("PATCH", path, {}, headers, release))
                self.real.send(Request("DELETE", path))

    def _create_namespace(self, name: str) -> None:
        body = orjson.dumps({"metadata": {"name": name}})
        headers = {"content-type": "application/json"}
        self.real.send(Request("POST", "/api/v1/namespaces", {}, headers, body))

    def _send(self, drawn: Drawn) -> None:
        if drawn.needs_cache:
            self._refresh(drawn)
        answers = {}
        for side, memory in self._memories.items():
            status, body = side.send(_build(drawn, memory))
            memory.take(drawn.resource, status, body)
            answers[side] = memory.normalise(status, body)
        self._compare(self.requests, drawn, answers[self.real], answers[self.simulated])

    def _watch(self, drawn: Drawn) -> None:
        self.watches += 1
        self._refresh(drawn)
        real = self.real.watch(_build(drawn, self._memories[self.real]))
        simulated = self.simulated.watch(_build(drawn, self._memories[self.simulated]))
        if isinstance(real, tuple) or isinstance(simulated, tuple):
            answers = [
                self._memories[side].normalise(*answer) if isinstance(answer, tuple) else "stream"
                for side, answer in ((self.real, real), (self.simulated, simulated))
            ]
            self._compare(self.requests, drawn, *answers)
            for answer in (real, simulated):
                if not isinstance(answer, tuple):
                    answer.close()
            return
        self._open.append(_OpenWatch(drawn, self.requests, real, simulated))
        if len(self._open) > _WATCHES:
            self._finish(self._open.pop(0))

    def _finish(self, watch: _OpenWatch) -> None:
        """Compare what has come until now."""
        memory = self._memories[self.simulated]
        wanted = [memory.normalise_event(event) for event in watch.simulated.read()]
        deadline = time.monotonic() + _PATIENCE
        while True:
            found = self._read(watch)
            if len(found) >= len(wanted) or time.monotonic() > deadline:
                break
            time.sleep(0.002)
        self.events += len(found)
        for index in range(max(len(found), len(wanted))):
            pair = [events[index : index + 1] for events in (found, wanted)]
            if pair[0] != pair[1]:
                self._compare(watch.number, f"{watch.drawn}: event {index}", *pair)
                break
        watch.real.close()
        watch.simulated.close()

    def _read(self, watch: _OpenWatch) -> list[Any]:
        """Return the events of the real server, without the bookmarks of its own choice."""
        memory = self._memories[self.real]
        events = [memory.normalise_event(event) for event in watch.real.read()]
        return [event for event in events if event[0] != "BOOKMARK" or event[2]]

    def _refresh(self, drawn: Drawn) -> None:
        """Wait until the watch cache of the real server has everything: a list does that."""
        self.real.send(Request("GET", drawn.path))

    def _compare(self, number: int, request: Any, real: Any, simulated: Any) -> None:
        if self.trace and self.trace in str(request):
            sys.stdout.write(f"#{number} {request}\n   {real}\n")
        if real != simulated:
            self.differences.append(Difference(number, request, real, simulated))


def _build(drawn: Drawn, memory: Memory) -> Request:
    """Return the request for one side."""
    body = memory.fill_in(drawn.body)
    return Request(
        drawn.method,
        drawn.path,
        memory.fill_in(drawn.query),
        {"content-type": drawn.content_type, **drawn.headers},
        None if body is None else orjson.dumps(body),
    )


def _reduce(one: Any, other: Any) -> tuple[Any, Any]:
    """Return only what differs."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = {**one, **other}
        pairs = {key: _reduce(one.get(key, "absent"), other.get(key, "absent")) for key in keys}
        pairs = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
        return {key: pair[0] for key, pair in pairs.items()}, {
            key: pair[1] for key, pair in pairs.items()
        }
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        lists = [_reduce(*pair) for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
        return [pair[0] for pair in lists], [pair[1] for pair in lists]
    return one, other
