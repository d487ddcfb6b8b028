"""Conversion on both servers: the same requests in two versions of a kind, with one converter.

It renames a field. Some values have it fail, or do what converters must not do.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

from webop.testing.apiserver import Json, Refusal
from webop.testing.apiserver.conversions import refuse_conversion

from .hooks import HookServer, Judge
from .requests import APPLY, CRDS, JSON, JSON_PATCH, MERGE_PATCH, Place
from .sides import Player, RealSide, Side, SimulatedSide, Told, build_request, play_both

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_GROUP = "conversions.webop.dev"
_NAME = f"boats.{_GROUP}"
_FIELDS = {"v1": "length", "v2": "size"}
_OWN = {"v1": "color", "v2": "sail"}  # with a default; the other version does not have it
_FAILS, _RENAMES, _MARKS, _SPOILS, _STAYS = range(90, 95)  # on the way to v1
_PATIENCE = 10.0  # seconds, for events and definitions of the real server


def convert(objects: list[Json], api_version: str) -> list[Json]:
    """Convert boats, for both servers.

    Raises:
        Refusal: it is to fail for one of them.
    """
    return [_convert(raw, api_version) for raw in objects]


def _convert(raw: Json, api_version: str) -> Json:
    source, target = (text.rpartition("/")[2] for text in (raw["apiVersion"], api_version))
    # Server-side apply also sends what some managers own of an object.
    spec, metadata = dict(raw.get("spec") or {}), dict(raw.get("metadata") or {})
    spec.pop(_OWN[source], None)  # with unknown fields, server-side apply fails
    if (size := spec.pop(_FIELDS[source], None)) is not None:
        spec[_FIELDS[target]] = size
    if target == "v1":
        if size == _FAILS:
            raise refuse_conversion(raw, "failed: no such boat")
        if size == _STAYS:
            return raw
        if size == _RENAMES:
            metadata["name"] = "other"
        if size == _MARKS:
            metadata |= {"labels": {"marked": "yes"}, "finalizers": ["example.com/no"]}
        if size == _SPOILS:
            metadata["labels"] = {"marked": "no value!"}
    return {**raw, "apiVersion": api_version, "metadata": metadata, "spec": spec}


class _Converter(Judge):
    """Answers the ConversionReviews of the real server."""

    def judge(self, name: str, review: Json) -> Json:
        del name
        request = review["request"]
        response: Json = {"uid": request["uid"], "result": {"status": "Success"}}
        try:
            converted = convert(request["objects"], request["desiredAPIVersion"])
            response["convertedObjects"] = converted
        except Refusal as exc:
            message = str(exc).partition(" failed: ")[2]
            response["result"] = {"status": "Failure", "message": message}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def tell(cluster: LocalCluster) -> list[tuple[str, Any, Any]]:
    """Send the requests to both; return the differences: what, real, simulated."""
    hooks = HookServer(_Converter())
    real, simulated = RealSide(cluster), SimulatedSide(0, converter=convert)
    definition = _build_crd(hooks)
    try:
        _define(real, definition)
        simulated.send(build_request("POST", CRDS, definition))
        return play_both(_play, real, simulated, _Player)
    finally:
        real.send(build_request("DELETE", f"{CRDS}/{_NAME}"))
        real.close()
        hooks.close()


class _Player(Player):
    """Addresses boats, by their version and name."""

    def __init__(self, side: Side, wanted: Told | None) -> None:
        super().__init__(side, wanted)
        self._versions: dict[str, str] = {}

    def ask(
        self,
        method: str,
        version: str,
        name: str = "",
        body: Any = None,
        form: str = JSON,
        **query: str,
    ) -> None:
        """Send a request, and do not wait for another answer."""
        request = build_request(
            method, _locate(version, name), self.memory.fill_in(body), form, **query
        )
        told = self.describe(name.partition("/")[0], *self.side.send(request))
        self.told.append((f"{method} {version} {name} {body} {query}", told))

    def describe(self, path: str, status: int, answer: Any) -> Any:
        """Note also whether the object has a new resource version."""
        self.memory.take("boats", status, answer)
        metadata = (answer.get("metadata") or {}) if isinstance(answer, dict) else {}
        is_new = self._versions.get(path) != metadata.get("resourceVersion")
        if "uid" in metadata:
            self._versions[path] = metadata.get("resourceVersion", "")
        told = [self.memory.normalise(status, answer), "uid" in metadata and is_new]
        message = str(answer.get("message", "")) if isinstance(answer, dict) else ""
        if message.startswith(("conversion", "Apply failed")):
            told.append(message.partition(" must be")[0].partition("metadata.")[0])
        return told

    def apply(self, version: str, name: str, manager: str, *, force: str = "", **spec: Any) -> None:
        """Apply a configuration."""
        query = {"fieldManager": manager, **({"force": force} if force else {})}
        self.ask("PATCH", version, name, _build(version, name, **spec), APPLY, **query)

    def merge(self, version: str, name: str, patch: Json, **query: str) -> None:
        """Send a merge patch."""
        self.ask("PATCH", version, name, patch, MERGE_PATCH, **query)


def _play(player: _Player) -> None:
    streams = {
        f"the watch of {version} {query}": player.watch(_locate(version), **query)
        for version, query in (
            ("v1", {}),
            ("v2", {}),
            ("v1", {"fieldSelector": "spec.length=5"}),
            ("v2", {"fieldSelector": "spec.size=5"}),
        )
    }
    _write(player)
    _apply(player)
    _delete(player)
    for what, stream in streams.items():
        player.read(what, stream)
        stream.close()
    stream = player.watch(_locate("v2"))
    _fail(player)
    player.read("the watch of v2 while conversions to v1 fail", stream)
    player.read("the watch of v1 after conversions fail", player.watch(_locate("v1")))
    player.ask("DELETE", "v2")
    player.ask("GET", "v2")


def _write(player: _Player) -> None:
    for version in ("v1", "v2"):
        player.ask("POST", version, "", _build(version, "a", **{_FIELDS[version]: 1}))
    player.ask("GET", "v1", "a")
    player.ask("GET", "v2", "a")
    player.ask("POST", "v1", "", _build("v1", "dry", length=1), dryRun="All")
    player.ask("POST", "v1", "", _build("v2", "wrong", size=1))
    player.ask("POST", "v2", "", _build("v2", "b", size=2, crew=[{"name": "x"}]))
    player.ask("GET", "v1", "b")
    for version in ("v1", "v1", "v2", "v2"):  # not each of them changes what is stored
        player.merge(version, "b", {"spec": {_FIELDS[version]: 5}})
    for wrong in (100, None, "text"):
        player.merge("v1", "b", {"spec": {"length": wrong}})
    test = {"op": "test", "path": "/spec/length", "value": 5}
    change = {"op": "replace", "path": "/spec/length", "value": 6}
    player.ask("PATCH", "v1", "b", [test, change], JSON_PATCH)
    player.ask("PATCH", "v2", "b", [test, change], JSON_PATCH)
    player.merge("v1", "b", {"spec": {"color": "blue"}})
    player.merge("v2", "b", {"spec": {"sail": "blue"}})
    player.merge("v1", "b", {})
    player.ask("PATCH", "v1", "b", [], JSON_PATCH)
    player.merge("v1", "b", {"metadata": {"labels": {"x": "y"}}})
    player.ask("GET", "v2", "b")
    player.merge("v1", "b/status", {"status": {"x": 1}})
    for version, field in _FIELDS.items():
        player.ask("GET", version)
        player.ask("GET", version, fieldSelector=f"spec.{field}=6")
        player.ask("GET", version, labelSelector="x=y")
    whole = _build("v1", "b", length=7)
    for found in ("$version:boats/default/b", "1"):
        body = {**whole, "metadata": {"name": "b", "resourceVersion": found}}
        player.ask("PUT", "v1", "b", body)
    player.merge("v1", "b", {"spec": {"length": 8}}, dryRun="All")


def _apply(player: _Player) -> None:
    """Apply in both versions: managers own fields by the names of theirs."""
    player.apply("v1", "s", "p", length=7, crew=[{"name": "x", "port": 5}])
    player.apply("v2", "s", "q", size=8)
    player.apply("v2", "s", "q", size=7, crew=[{"name": "y"}])
    player.apply("v2", "s", "q", size=8, force="true")
    player.apply("v1", "s", "p", length=9)
    player.apply("v1", "s", "p", length=9, force="true")
    player.apply("v1", "s", "p", length=9)
    player.merge("v2", "s", {"spec": {"size": 11}}, fieldManager="u")
    player.apply("v1", "s", "p", length=12)
    player.merge("v1", "s", {"spec": {"length": 13}}, fieldManager="u")
    player.apply("v2", "s", "p", size=14)
    player.apply("v2", "s", "p", size=14, crew=[{"name": "x"}, {"name": "z"}], force="true")
    player.apply("v1", "s", "q", length=14, crew=[{"name": "z", "port": 2}])
    player.apply("v2", "s", "p", size=14)
    player.apply("v1", "s", "p", length=14)
    player.apply("v2", "s", "q", size=14)
    player.ask("GET", "v1", "s")


def _delete(player: _Player) -> None:
    player.ask("DELETE", "v1", "b")
    player.ask("DELETE", "v2", "s")
    player.merge("v1", "a", {"metadata": {"finalizers": ["example.com/x"]}})
    player.ask("DELETE", "v1", "a")
    player.ask("GET", "v2", "a")
    player.merge("v1", "a", {"metadata": {"finalizers": None}})


def _fail(player: _Player) -> None:
    player.ask("POST", "v2", "", _build("v2", "m", size=_MARKS))
    for version in _FIELDS:
        player.ask("GET", version, "m")
        player.ask("GET", version, labelSelector="marked")
    player.ask("POST", "v2", "", _build("v2", "f", size=_FAILS))
    player.ask("GET", "v1", "f")
    player.ask("GET", "v1")
    player.merge("v1", "f", {"spec": {"length": 5}})
    player.ask("DELETE", "v1", "f")
    player.ask("POST", "v1", "", _build("v1", "g", length=_FAILS))
    player.ask("POST", "v1", "", _build("v1", "h", length=_FAILS), dryRun="All")
    player.ask("POST", "v1", "", _build("v1", "f", length=3))
    player.ask("GET", "v2", "g")
    player.apply("v1", "k", "p", length=1)
    for value in (_FAILS, 2, 3):  # the owner of a field of v1 is forgotten
        player.merge("v2", "k", {"spec": {"size": value}}, fieldManager="u")
    player.apply("v2", "k", "p", size=4)
    player.apply("v2", "k", "p", size=4, force="true")
    player.apply("v1", "k", "q", length=5)
    for value in (_RENAMES, _SPOILS, _STAYS):
        player.merge("v2", "f", {"spec": {"size": value}})
        player.ask("GET", "v1", "f")


def _build(version: str, name: str, **spec: Any) -> Json:
    head = {"apiVersion": f"{_GROUP}/{version}", "kind": "Boat", "metadata": {"name": name}}
    return {**head, "spec": spec}


def _locate(version: str, name: str = "") -> str:
    path = f"/apis/{_GROUP}/{version}/namespaces/default/boats"
    return f"{path}/{name}" if name else path


def _define(real: RealSide, definition: Json) -> None:
    deadline = time.monotonic() + 2 * _PATIENCE
    while real.send(build_request("POST", CRDS, definition))[0] != 201:
        real.send(build_request("DELETE", f"{CRDS}/{_NAME}"))  # of an earlier comparison
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # Some time after its first answers, the server still creates nothing.
    probe = build_request("POST", _locate("v1"), _build("v1", "probe", length=1), dryRun="All")
    while real.send(probe)[0] != 201:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _build_crd(hooks: HookServer) -> Json:
    item: Json = {"type": "object", "required": ["name"]}
    item["properties"] = {"name": {"type": "string"}, "port": {"type": "integer", "default": 1}}
    crew = {
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    versions = []
    for name, field in _FIELDS.items():
        spec: Json = {"type": "object", "required": [field]}
        spec["properties"] = {
            field: {"type": "integer", "maximum": 99},
            _OWN[name]: {"type": "string", "default": "white"},
            "crew": crew,
        }
        status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        properties = {"spec": spec, "status": status}
        versions.append(
            {
                "name": name,
                "served": True,
                "storage": name == "v2",
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": f".spec.{field}"}],
            }
        )
    client = {"url": hooks.url, "caBundle": base64.b64encode(hooks.ca).decode()}
    webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
    crd = Place("boats", "Boat", _GROUP).build_crd({})
    crd["spec"]["versions"] = versions
    crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return crd
