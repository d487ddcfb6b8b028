"""Models of known projects' kinds: the API server accepts them, and the table is of today."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

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


@pytest.mark.journey
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
