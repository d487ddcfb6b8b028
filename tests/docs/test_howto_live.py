"""The operators of the task pages do in a cluster what the pages say."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.operators import Kind
from tests.kit.pages import DOCS, find_blocks
from webop.errors import ClusterError
from webop.testing import OperatorRunner, eventually

if TYPE_CHECKING:
    from webop.testing import LocalCluster

pytestmark = pytest.mark.journey


PAGES = DOCS / "howto"
DATABASES = Kind("example.com", "databases", "Database")
DATABASE = {
    "apiVersion": "example.com/v1",
    "kind": "Database",
    "metadata": {"name": "main"},
    "spec": {"secretName": "password"},
}


@pytest.fixture
def start(
    tmp_path: Path, webop_operator: Callable[..., OperatorRunner]
) -> Callable[[str], OperatorRunner]:
    """Return a function that prepares the operator of some source."""

    def prepare(source: str) -> OperatorRunner:
        (tmp_path / "handlers.py").write_text(source)
        return webop_operator(tmp_path / "handlers.py")

    return prepare


def read_source(page: str, function: str) -> str:
    """Return the block of a page that defines a handler."""
    blocks = [block.code for block in find_blocks(PAGES / page) if block.language == "python"]
    return next(code for code in blocks if re.search(rf"def {function}\(", code))


def build_secret(password: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "password", "labels": {"app": "databases"}},
        "stringData": {"password": password},
    }


def test_a_changed_secret_is_handled_for_the_database_that_names_it(
    webop_cluster: LocalCluster, webop_namespace: str, start: Callable[[str], OperatorRunner]
) -> None:
    source = read_source("children.md", "find_users")
    webop_cluster.apply(DATABASES.build_crd())
    webop_cluster.apply(DATABASE, namespace=webop_namespace)
    webop_cluster.apply(build_secret("one"), namespace=webop_namespace)

    def count_calls() -> int:
        return len(re.findall("Setting a password of", runner.output))

    with start(source) as runner:
        eventually(lambda: count_calls() == 1, "the Secret is used")
        webop_cluster.apply(build_secret("another"), namespace=webop_namespace)
        eventually(lambda: count_calls() == 2, "the change is handled")
    assert runner.exit_code == 0


def test_a_deletion_is_denied_and_then_delayed(
    webop_cluster: LocalCluster, webop_namespace: str, start: Callable[[str], OperatorRunner]
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    delay, block = (read_source("deletion.md", name) for name in ("drop", "protect"))
    source = delay.replace('"main": "busy"', '"other": "busy"') + block.replace("9443", "0")
    blocks = find_blocks(PAGES / "deletion.md")
    _, *denial = next(b.code for b in blocks if b.language == "console").splitlines()
    name, where = "orders", f"--namespace={webop_namespace}"
    webop_cluster.apply(DATABASES.build_crd())
    metadata = {"name": name, "labels": {"protected": "yes"}}

    def read_finalizers() -> Any:
        body = webop_cluster.get("example.com/v1", "Database", name, webop_namespace)
        return (body or {})["metadata"]["finalizers"]

    def is_denied() -> bool:
        try:
            webop_cluster.kubectl("delete", "database", name, where, "--dry-run=server")
        except ClusterError as exc:
            return " ".join(denial) in str(exc)
        return False

    with start(source) as runner:
        webop_cluster.apply({**DATABASE, "metadata": metadata}, namespace=webop_namespace)
        eventually(read_finalizers, "the finalizer is there")
        eventually(is_denied, "the deletion is denied")
        webop_cluster.kubectl("label", "database", name, where, "protected-")
        webop_cluster.kubectl("delete", "database", name, where, "--timeout=10s")
        assert "The volume is gone." in runner.output
    assert runner.exit_code == 0


def test_a_deleted_child_comes_back(
    webop_cluster: LocalCluster, webop_namespace: str, start: Callable[[str], OperatorRunner]
) -> None:
    source = read_source("children.md", "publish")
    webop_cluster.apply(Kind("example.com", "websites", "Website").build_crd())
    website = {**DATABASE, "kind": "Website", "spec": {"text": "Hello"}}
    child = "v1", "ConfigMap", "main-content", webop_namespace

    def read_child(*, former: str = "") -> Any:
        body = webop_cluster.get(*child)
        return body if body and body["metadata"]["uid"] != former else None

    with start(source) as runner:
        webop_cluster.apply(website, namespace=webop_namespace)
        first = eventually(read_child, "the child is there")
        assert first["data"] == {"index.html": "Hello"}
        webop_cluster.delete(*child)
        eventually(lambda: read_child(former=first["metadata"]["uid"]), "it is there again")
    assert runner.exit_code == 0


def test_a_condition_says_why_a_handler_failed(
    webop_cluster: LocalCluster, webop_namespace: str, start: Callable[[str], OperatorRunner]
) -> None:
    source = read_source("patching.md", "provide")
    webop_cluster.apply(DATABASES.build_crd())

    def read_reason(name: str) -> Any:
        body = webop_cluster.get("example.com/v1", "Database", name, webop_namespace)
        (condition,) = (body or {})["status"]["conditions"]
        return condition["status"], condition["reason"]

    with start(source) as runner:
        for name, size in (("small", 1), ("large", 200)):
            database = {**DATABASE, "metadata": {"name": name}, "spec": {"size": size}}
            webop_cluster.apply(database, namespace=webop_namespace)
        assert eventually(lambda: read_reason("small")) == ("True", "Provisioned")
        assert eventually(lambda: read_reason("large")) == ("False", "TooLarge")
    assert runner.exit_code == 0
