"""The life of a CRD on both servers: it comes, changes, collides with another one, goes."""

from __future__ import annotations

from typing import Any

from .drawing import build_crd
from .requests import CRDS, MERGE_PATCH, Place
from .sides import Player, Side, play_both

_TREES = Place("trees", "Tree", "definitions.webop.dev")
_OTHERS = Place("others", "Tree", "definitions.webop.dev")  # the same kind: a collision


def tell(real: Side, simulated: Side) -> list[tuple[str, Any, Any]]:
    """Play the life on both; return the differences: what, real, simulated."""
    return play_both(_live, real, simulated, Player)


def _live(player: Player) -> None:
    """Send all requests, read all watches."""
    crd, other = f"{CRDS}/{_TREES.plural}.{_TREES.group}", f"{CRDS}/others.{_TREES.group}"
    path, version = _TREES.build_path("default"), f"/apis/{_TREES.api_version}"
    definition = build_crd(_TREES)
    crds = player.watch(CRDS, fieldSelector=f"metadata.name={definition['metadata']['name']}")
    player.send("POST", CRDS, definition)
    for each in (crd, path, version):
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
    player.send("POST", CRDS, build_crd(_OTHERS))
    player.send("GET", other)
    player.send("GET", _OTHERS.build_path("default"))
    player.send("DELETE", other)
    player.send("GET", other)
    # Many workers delete: the order of the objects is by chance.
    past = player.memory.fill_in("$version:trees/default/free")
    trees = player.watch(path, resourceVersion=past, fieldSelector="metadata.name=held")
    player.send("DELETE", crd)
    for each in (path, crd, version):
        player.send("GET", each)
    player.send("POST", path, _TREES.build("late", spec={}))
    player.send("PATCH", f"{path}/held", {"metadata": {"finalizers": None}}, MERGE_PATCH)
    for each in (crd, path, version):
        player.send("GET", each)
    player.read("the watch of the trees when they go", trees)
    player.read("the watch of the definition", crds)
