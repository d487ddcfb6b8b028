"""The life of a CRD on both servers: it comes, changes, collides with another one, goes.

The controllers of the real server need moments for it. So the simulated one plays first, and each
answer of the real one is waited for until it is alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson

from webop.testing.apiserver import Json, Request

from .drawing import JSON, MERGE_PATCH, Place, build_crd
from .sides import EventStream, Memory, Side

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PATIENCE = 20.0  # seconds
_RELEASE: Json = {"metadata": {"finalizers": None}}
_TREES = Place("trees", "Tree", "definitions.webop.dev")
_OTHERS = Place("others", "Tree", "definitions.webop.dev")  # the same kind: a collision


Told = list[tuple[str, Any]]


def tell(real: Side, simulated: Side) -> list[tuple[str, Any, Any]]:
    """Play the life on both; return the differences: what, real, simulated."""
    first = _Player(simulated, None)
    _live(first)
    second = _Player(real, first.told)
    _live(second)
    pairs = zip(second.told, first.told, strict=True)
    return [(what, found, wanted) for (what, found), (_, wanted) in pairs if found != wanted]


class _Player:
    """Plays on one side, and keeps what it answers.

    With what the other side has told, answers are waited for until they are the same.
    """

    def __init__(self, side: Side, wanted: Told | None) -> None:
        self.told: Told = []
        # How often something is read until it is as wanted is by chance.
        self.memory = Memory(is_ranking=False)
        self._side = side
        self._wanted = wanted
        self._streams: list[EventStream] = []

    def send(self, method: str, path: str, body: Any = None, form: str = JSON) -> None:
        content = None if body is None else orjson.dumps(body)
        request = Request(method, path, {}, {"content-type": form}, content)

        def ask() -> tuple[Any, bool]:
            status, answer = self._side.send(request)
            self.memory.take("trees", status, answer)
            is_final = method != "GET" and status not in {404, 429}
            return self.memory.normalise(status, answer), is_final

        self._keep(f"{method} {path}", ask)

    def watch(self, path: str, **query: str) -> EventStream:
        stream = self._side.watch(Request("GET", path, {"watch": "true", **query}))
        assert not isinstance(stream, tuple)
        self._streams.append(stream)
        return stream

    def read(self, what: str, stream: EventStream) -> None:
        def look() -> tuple[Any, bool]:
            events = [self.memory.normalise_event(event) for event in stream.read()]
            return (events, stream.is_over), False

        self._keep(what, look)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _keep(self, what: str, look: Callable[[], tuple[Any, bool]]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            result, is_final = look()
            is_alike = self._wanted is None or self._wanted[len(self.told)][1] == result
            if is_alike or is_final or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.told.append((what, result))


def _build(name: str, **metadata: Any) -> Json:
    metadata["name"] = name
    return {"apiVersion": _TREES.api_version, "kind": "Tree", "metadata": metadata, "spec": {}}


def _live(player: _Player) -> None:
    """Send all requests, read all watches."""
    crd, other = f"{_CRDS}/{_TREES.plural}.{_TREES.group}", f"{_CRDS}/others.{_TREES.group}"
    path, version = _TREES.build_path("default"), f"/apis/{_TREES.api_version}"
    definition = build_crd(_TREES)
    crds = player.watch(_CRDS, fieldSelector=f"metadata.name={definition['metadata']['name']}")
    player.send("POST", _CRDS, definition)
    player.send("GET", crd)
    player.send("GET", path)
    player.send("GET", version)
    player.send("POST", path, _build("held", finalizers=["example.com/hold"]))
    player.send("POST", path, _build("free"))
    past = player.memory.fill_in("$version:trees/default/free")
    trees = player.watch(path, resourceVersion=past)
    versions = [{**definition["spec"]["versions"][0], "subresources": {"status": {}}}]
    player.send("PATCH", crd, {"spec": {"versions": versions}}, MERGE_PATCH)
    player.read("the watch of the trees when their definition changes", trees)
    player.send("PATCH", f"{path}/free/status", {"status": {"a": 1}}, MERGE_PATCH)
    player.read("a watch from before the change", player.watch(path, resourceVersion=past))
    player.send("POST", _CRDS, build_crd(_OTHERS))
    player.send("GET", other)
    player.send("GET", _OTHERS.build_path("default"))
    player.send("DELETE", other)
    player.send("GET", other)
    # Many workers delete: the order of the objects is by chance.
    held = {"fieldSelector": "metadata.name=held"}
    trees = player.watch(
        path, resourceVersion=player.memory.fill_in("$version:trees/default/free"), **held
    )
    player.send("DELETE", crd)
    player.send("GET", path)
    player.send("GET", crd)
    player.send("GET", version)
    player.send("POST", path, _build("late"))
    player.send("PATCH", f"{path}/held", _RELEASE, MERGE_PATCH)
    player.send("GET", crd)
    player.send("GET", path)
    player.send("GET", version)
    player.read("the watch of the trees when they go", trees)
    player.read("the watch of the definition", crds)
    player.close()
