"""Stories that are played on both servers: the life of a CRD, and a kind with two versions.

The converter of the second one renames a field. Some values have it fail, or set a label.
"""

from __future__ import annotations

import base64
import contextlib
import time
from typing import TYPE_CHECKING, Any

from webop.testing.apiserver import Json, Refusal
from webop.testing.apiserver.conversions import refuse_conversion

from .drawing import build_crd
from .hooks import HookServer
from .requests import APPLY, CRDS, JSON, JSON_PATCH, MERGE_PATCH, Place, build_request
from .sides import Player, RealSide, SimulatedSide, play_both

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Differences = list[tuple[str, Any, Any]]

_GROUP = "definitions.webop.dev"
_TREES = Place("trees", "Tree", _GROUP)

_BOATS = Place("boats", "Boat", "conversions.webop.dev")
_FIELDS = {"v1": "length", "v2": "size"}
_OWN = {"v1": "color", "v2": "sail"}  # with a default; the other version does not have it
_FAILS, _MARKS = 90, 91  # on the way to v1
_PATIENCE = 20.0  # seconds, until the real server serves a kind


def compare_definitions(cluster: LocalCluster) -> Differences:
    """Let a CRD come, change, and go."""
    with contextlib.closing(RealSide(cluster)) as real:
        return play_both(_live, real, SimulatedSide(0), is_ranking=False)


def _live(player: Player) -> None:
    crd, path = f"{CRDS}/trees.{_GROUP}", _TREES.build_path("default")
    definition = build_crd(_TREES)
    crds = player.watch(CRDS, fieldSelector=f"metadata.name=trees.{_GROUP}")
    player.send("POST", CRDS, definition)
    for each in (crd, path):
        player.send("GET", each)
    held = _TREES.build("held", spec={})
    held["metadata"]["finalizers"] = ["example.com/hold"]
    player.send("POST", path, held)
    player.send("POST", path, _TREES.build("free", spec={}))
    past = player.memory.fill_in("$version:trees/default/free")
    trees = player.watch(path, resourceVersion=past)
    versions = [{**definition["spec"]["versions"][0], "subresources": {"status": {}}}]
    player.send("PATCH", crd, {"spec": {"versions": versions}}, MERGE_PATCH)
    player.read("the watch of the trees when their definition changes", trees)
    player.send("PATCH", f"{path}/free/status", {"status": {"a": 1}}, MERGE_PATCH)
    player.read("a watch from before the change", player.watch(path, resourceVersion=past))
    # Many workers delete: the order of the objects is by chance.
    past = player.memory.fill_in("$version:trees/default/free")
    trees = player.watch(path, resourceVersion=past, fieldSelector="metadata.name=held")
    player.send("DELETE", crd)
    for each in (path, crd):
        player.send("GET", each)
    player.send("POST", path, _TREES.build("late", spec={}))
    player.send("PATCH", f"{path}/held", {"metadata": {"finalizers": None}}, MERGE_PATCH)
    for each in (crd, path):
        player.send("GET", each)
    player.read("the watch of the trees when they go", trees)
    player.read("the watch of the definition", crds)


def compare_conversions(cluster: LocalCluster) -> Differences:
    """Read and write objects in two versions, with one converter for both servers."""
    hooks = HookServer(_answer)
    definition = _build_boats_crd(hooks)
    path = f"{CRDS}/{definition['metadata']['name']}"
    simulated = SimulatedSide(0, converter=convert)
    simulated.send(build_request("POST", CRDS, definition))
    with contextlib.closing(RealSide(cluster)) as real, contextlib.closing(hooks):
        deadline = time.monotonic() + _PATIENCE
        while real.send(build_request("POST", CRDS, definition))[0] != 201:
            real.send(build_request("DELETE", path))  # of an earlier comparison
            assert time.monotonic() < deadline
            time.sleep(0.2)
        # Some time after its first answers, the server still creates nothing.
        probe = build_request("POST", _locate("v1"), _build("v1", "x", length=1), dryRun="All")
        while real.send(probe)[0] != 201:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        try:
            return play_both(_use_versions, real, simulated, is_ranking=True)
        finally:
            real.send(build_request("DELETE", path))


def convert(raw: Json, api_version: str) -> Json:
    """Convert a boat, for both servers."""
    source, target = (text.rpartition("/")[2] for text in (raw["apiVersion"], api_version))
    # Server-side apply also sends what some managers own of an object.
    spec, metadata = dict(raw.get("spec") or {}), dict(raw.get("metadata") or {})
    spec.pop(_OWN[source], None)  # with unknown fields, server-side apply fails
    if (size := spec.pop(_FIELDS[source], None)) is not None:
        spec[_FIELDS[target]] = size
    if target == "v1":
        if size == _FAILS:
            raise refuse_conversion(raw, "failed: no such boat")
        if size == _MARKS:
            metadata |= {"labels": {"marked": "yes"}, "finalizers": ["example.com/no"]}
    return {**raw, "apiVersion": api_version, "metadata": metadata, "spec": spec}


def _answer(review: Json) -> Json:
    """Answer a ConversionReview of the real server."""
    request = review["request"]
    response: Json = {"uid": request["uid"], "result": {"status": "Success"}}
    try:
        wanted = request["desiredAPIVersion"]
        response["convertedObjects"] = [convert(raw, wanted) for raw in request["objects"]]
    except Refusal as exc:
        message = str(exc).partition(" failed: ")[2]
        response["result"] = {"status": "Failure", "message": message}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


class _Boats:
    """Requests about boats in both versions."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def ask(
        self,
        method: str,
        version: str,
        name: str = "",
        body: Any = None,
        form: str = JSON,
        **query: str,
    ) -> None:
        self._player.send(method, _locate(version, name), body, form, **query)

    def create(self, version: str, name: str, **spec: Any) -> None:
        self.ask("POST", version, "", _build(version, name, **spec))

    def merge(self, version: str, name: str, patch: Json, **query: str) -> None:
        self.ask("PATCH", version, name, patch, MERGE_PATCH, **query)

    def apply(self, version: str, manager: str, *, force: str = "false", **spec: Any) -> None:
        body = _build(version, "s", **spec)
        self.ask("PATCH", version, "s", body, APPLY, fieldManager=manager, force=force)


def _use_versions(player: Player) -> None:
    boats = _Boats(player)
    streams = {
        f"the watch of {version} {query}": player.watch(_locate(version), **query)
        for version, field in _FIELDS.items()
        for query in ({}, {"fieldSelector": f"spec.{field}=5"})
    }
    for version, field in _FIELDS.items():
        boats.create(version, "a", **{field: 1})
        boats.ask("GET", version, "a")
    boats.ask("POST", "v1", "", _build("v1", "dry", length=1), dryRun="All")
    boats.ask("POST", "v1", "", _build("v2", "wrong", size=1))
    boats.create("v2", "b", size=2, crew=[{"name": "x"}])
    boats.ask("GET", "v1", "b")
    for version in ("v1", "v1", "v2", "v2"):  # not each of them changes what is stored
        boats.merge(version, "b", {"spec": {_FIELDS[version]: 5}})
    for wrong in (100, None, "text"):
        boats.merge("v1", "b", {"spec": {"length": wrong}})
    test = {"op": "test", "path": "/spec/length", "value": 5}
    change = {"op": "replace", "path": "/spec/length", "value": 6}
    for version in _FIELDS:
        boats.ask("PATCH", version, "b", [test, change], JSON_PATCH)
        boats.merge(version, "b", {"spec": {_OWN[version]: "blue"}})
    boats.merge("v1", "b", {})
    boats.merge("v1", "b", {"metadata": {"labels": {"x": "y"}}})
    boats.merge("v1", "b/status", {"status": {"x": 1}})
    for version, field in _FIELDS.items():
        boats.ask("GET", version)
        boats.ask("GET", version, fieldSelector=f"spec.{field}=6")
        boats.ask("GET", version, labelSelector="x=y")
    whole = _build("v1", "b", length=7)
    for found in ("$version:boats/default/b", "1"):
        boats.ask("PUT", "v1", "b", {**whole, "metadata": {"name": "b", "resourceVersion": found}})
    boats.merge("v1", "b", {"spec": {"length": 8}}, dryRun="All")
    _apply(boats)
    boats.ask("DELETE", "v1", "b")
    boats.ask("DELETE", "v2", "s")
    boats.merge("v1", "a", {"metadata": {"finalizers": ["example.com/x"]}})
    boats.ask("DELETE", "v1", "a")
    boats.merge("v1", "a", {"metadata": {"finalizers": None}})
    for what, stream in streams.items():
        player.read(what, stream)
        stream.close()
    stream = player.watch(_locate("v2"))
    _fail(boats)
    player.read("the watch of v2 while conversions to v1 fail", stream)
    player.read("the watch of v1 after conversions fail", player.watch(_locate("v1")))
    for name in ("f", "g", "m"):
        boats.ask("DELETE", "v2", name)
    boats.ask("GET", "v2")


def _apply(boats: _Boats) -> None:
    """Managers own fields by the names in their versions."""
    boats.apply("v1", "p", length=7, crew=[{"name": "x", "port": 5}])
    boats.apply("v2", "q", size=8)
    boats.apply("v2", "q", size=7, crew=[{"name": "y"}])
    boats.apply("v2", "q", size=8, force="true")
    boats.apply("v1", "p", length=9)
    boats.apply("v1", "p", length=9, force="true")
    boats.apply("v1", "p", length=9)
    boats.merge("v2", "s", {"spec": {"size": 11}}, fieldManager="u")
    boats.apply("v1", "p", length=12)
    boats.apply("v2", "p", size=14, crew=[{"name": "x"}, {"name": "z"}], force="true")
    boats.apply("v1", "q", length=14, crew=[{"name": "z", "port": 2}])
    boats.apply("v2", "p", size=14)
    boats.apply("v1", "p", length=14)
    boats.ask("GET", "v1", "s")


def _fail(boats: _Boats) -> None:
    boats.create("v2", "m", size=_MARKS)
    for version in _FIELDS:
        boats.ask("GET", version, "m")
        boats.ask("GET", version, labelSelector="marked")
    boats.create("v2", "f", size=_FAILS)
    boats.ask("GET", "v1", "f")
    boats.ask("GET", "v1")
    boats.merge("v1", "f", {"spec": {"length": 5}})
    boats.ask("DELETE", "v1", "f")
    boats.create("v1", "g", length=_FAILS)
    boats.create("v1", "f", length=3)
    boats.ask("GET", "v2", "g")


def _build(version: str, name: str, **spec: Any) -> Json:
    return {**_BOATS.build(name, spec=spec), "apiVersion": f"{_BOATS.group}/{version}"}


def _locate(version: str, name: str = "") -> str:
    return _BOATS.build_path("default", name).replace("/v1/", f"/{version}/")


def _build_boats_crd(hooks: HookServer) -> Json:
    sailor: Json = {"type": "object", "required": ["name"]}
    sailor["properties"] = {"name": {"type": "string"}, "port": {"type": "integer", "default": 1}}
    keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    crew = {"type": "array", "items": sailor, **keys}
    versions = []
    for name, field in _FIELDS.items():
        spec: Json = {"type": "object", "required": [field]}
        spec["properties"] = {
            field: {"type": "integer", "maximum": 99},
            _OWN[name]: {"type": "string", "default": "white"},
            "crew": crew,
        }
        status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        (version,) = _BOATS.build_crd(
            {"spec": spec, "status": status},
            name=name,
            storage=name == "v2",
            subresources={"status": {}},
            selectableFields=[{"jsonPath": f".spec.{field}"}],
        )["spec"]["versions"]
        versions.append(version)
    client = {"url": hooks.url, "caBundle": base64.b64encode(hooks.ca).decode()}
    webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
    crd = _BOATS.build_crd({})
    crd["spec"]["versions"] = versions
    crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return crd
