"""Models of known projects' kinds: the API server accepts them, and differences are found."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.crds.comparing import compare
from bench.crds.originals import ORIGINALS, Original
from tests.kit.processes import run_module
from webop.controlplane.cluster import LocalCluster
from webop.models.crds import build_crds

Json = dict[str, Any]
_ROOT = Path(__file__).parents[2]


@functools.cache
def build(original: Original) -> Json:
    (definition,) = build_crds([original.load_model()])
    return definition


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda each: each.kind)
def test_the_api_server_accepts_the_definition(
    webop_cluster: LocalCluster, original: Original
) -> None:
    definition = build(original)
    webop_cluster.apply(definition)
    webop_cluster.delete(
        "apiextensions.k8s.io/v1", definition["kind"], definition["metadata"]["name"]
    )


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda each: each.kind)
def test_a_definition_is_equal_to_itself(original: Original) -> None:
    found = compare(build(original), build(original))
    assert found.fields == found.equal > 20
    assert not found.differences
    assert not found.missing
    assert not found.more


def _get_version(definition: Json) -> Json:
    version: Json = definition["spec"]["versions"][0]
    return version


def _get_spec(definition: Json) -> Json:
    found: Json = _get_version(definition)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def _get_rules(definition: Json) -> list[Json]:
    found: list[Json] = _get_spec(definition)["x-kubernetes-validations"]
    return found


@pytest.mark.parametrize(
    ("change", "what", "place", "fewer"),
    [
        (
            lambda it: _get_spec(it)["properties"]["maxReplicaCount"].update(minimum=2),
            *("minimum", "spec.maxReplicaCount", 1),
        ),
        (
            lambda it: _get_spec(it)["properties"]["triggers"]["items"].update(nullable=True),
            *("nullable", "spec.triggers[]", 1),
        ),
        (
            lambda it: _get_rules(it)[0].update(rule="self.a <= self.b"),
            *("rule in other words", "spec", 1),
        ),
        (lambda it: _get_rules(it).append({"rule": "self.a"}), "rule", "spec", 1),
        (lambda it: _get_spec(it)["required"].append("fallback"), "required", "spec.fallback", 1),
        (
            lambda it: _get_version(it)["additionalPrinterColumns"][2].update(priority=1),
            *("column", "the definition", 0),
        ),
        (
            lambda it: it["spec"]["names"].update(shortNames=["scale"]),
            *("shortNames", "the definition", 0),
        ),
        (
            lambda it: it["spec"]["versions"].append({"name": "v2"}),
            *("version", "the definition", 0),
        ),
    ],
)
def test_what_differs_is_named_with_its_place(
    change: Callable[[Json], None], what: str, place: str, fewer: int
) -> None:
    ours = build(next(each for each in ORIGINALS if each.kind == "ScaledObject"))
    theirs = copy.deepcopy(ours)
    change(theirs)
    found = compare(theirs, ours)
    assert [(each.what, each.places) for each in found.differences] == [(what, [place])]
    assert found.equal == found.fields - fewer


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            {
                "x-kubernetes-int-or-string": True,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
            },
            {"x-kubernetes-int-or-string": True},
        ),
        (
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"},
            {"type": "array", "items": {"type": "string"}},
        ),
        (
            {"type": "string", "enum": ["b", "a"], "minLength": 1},
            {"type": "string", "enum": ["a", "b"]},
        ),
        ({"type": "string", "description": "What it is."}, {"type": "string"}),
    ],
)
def test_what_means_the_same_is_no_difference(theirs: Json, ours: Json) -> None:
    definitions = [copy.deepcopy(build(ORIGINALS[0])) for _ in range(2)]
    for definition, part in zip(definitions, (theirs, ours), strict=True):
        _get_spec(definition)["properties"]["part"] = part
    assert not compare(*definitions).differences


def test_the_command_prints_the_table_of_the_page(tmp_path: Path) -> None:
    for original in ORIGINALS:
        (tmp_path / f"{original.module}.yaml").write_text(yaml.safe_dump(build(original)))
    done = run_module("bench.crds", str(tmp_path), "--markdown")
    assert done.returncode == 0, done.stderr
    page = (_ROOT / "bench" / "crds" / "README.md").read_text()
    head, line, *rows = done.stdout.splitlines()
    assert f"{head}\n{line}\n" in page
    for row in rows:
        kind_and_original = " | ".join(row.split(" | ")[:2])
        assert kind_and_original in page
