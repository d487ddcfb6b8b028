"""The operators of the task pages do in a cluster what the pages say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.docs.pages import DOCS, find_blocks
from webop.testing import OperatorRunner, eventually

if TYPE_CHECKING:
    from webop.testing import LocalCluster

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "databases.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Database", "plural": "databases", "singular": "database"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
DATABASE = {
    "apiVersion": "example.com/v1",
    "kind": "Database",
    "metadata": {"name": "main"},
    "spec": {"secretName": "password"},
}


def build_secret(password: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "password", "labels": {"app": "databases"}},
        "stringData": {"password": password},
    }


def test_a_changed_secret_is_handled_for_the_database_that_names_it(
    tmp_path: Path,
    webop_cluster: LocalCluster,
    webop_namespace: str,
    webop_operator: Callable[..., OperatorRunner],
) -> None:
    source = next(b.code for b in find_blocks(DOCS / "howto_related.md") if b.language == "python")
    (tmp_path / "handlers.py").write_text(source)
    webop_cluster.apply(CRD)
    webop_cluster.apply(DATABASE, namespace=webop_namespace)
    webop_cluster.apply(build_secret("one"), namespace=webop_namespace)

    def count_calls() -> int:
        return len(re.findall("Database main gets a password", runner.output))

    with webop_operator(tmp_path / "handlers.py") as runner:
        eventually(lambda: count_calls() == 1, "the Secret is used")
        webop_cluster.apply(build_secret("another"), namespace=webop_namespace)
        eventually(lambda: count_calls() == 2, "the change is handled")
    assert runner.exit_code == 0
