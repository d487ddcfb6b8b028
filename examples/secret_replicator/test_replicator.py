"""Tests of the replicator on a real API server, with the rights of its service account."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from webop.testing import LocalCluster, OperatorRunner, eventually

TO = "replicator.example.com/to"
Json = dict[str, Any]


class World:
    """Access to Secrets, and to namespaces whose names begin with that of the test."""

    def __init__(self, cluster: LocalCluster, namespace: str) -> None:
        self.cluster, self.home = cluster, namespace
        self.gold = f"tier=gold-{namespace}"

    def add_namespace(self, name: str, label: str = "") -> str:
        full = f"{self.home}-{name}"
        metadata = {"name": full, "labels": dict([label.split("=")] if label else [])}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return full

    def put(self, namespace: str, to: str = "", **data: str) -> None:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
        annotations = {TO: to} if to else {}
        metadata = {"name": "login", "namespace": namespace, "annotations": annotations}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        self.cluster.apply({**secret, "data": encoded})

    def get(self, namespace: str) -> Any:
        return self.cluster.get("v1", "Secret", "login", namespace)

    def read(self, namespace: str) -> dict[str, str] | None:
        """Return the data of the Secret in a namespace; None if there is none."""
        secret = self.get(namespace)
        data = (secret or {}).get("data", {})
        decoded = {key: base64.b64decode(text).decode() for key, text in data.items()}
        return None if secret is None else decoded

    def delete(self, namespace: str) -> None:
        self.cluster.delete("v1", "Secret", "login", namespace)


@pytest.fixture
def world(webop_cluster: LocalCluster, webop_namespace: str) -> World:
    return World(webop_cluster, webop_namespace)


@pytest.fixture(scope="module")
def account(webop_cluster: LocalCluster) -> Path:
    """Apply the manifests of the operator; return a kubeconfig of its service account."""
    webop_cluster.apply(Path(__file__).parent / "manifests")
    user = "system:serviceaccount:secret-replicator:secret-replicator"
    return webop_cluster.kubeconfig_for(user)


@pytest.fixture
def run_operator(
    webop_operator: Callable[..., OperatorRunner], account: Path
) -> Callable[[], OperatorRunner]:
    return lambda: webop_operator(
        "replicator.py", "--all-namespaces", env={"KUBECONFIG": str(account)}
    )


@pytest.fixture
def operator(run_operator: Callable[[], OperatorRunner]) -> Iterator[OperatorRunner]:
    with run_operator() as runner:
        yield runner


def test_a_secret_is_copied_to_namespaces_by_name_and_by_label(
    operator: OperatorRunner, world: World
) -> None:
    by_name, other = world.add_namespace("team-a"), world.add_namespace("other")
    by_label = world.add_namespace("shop", world.gold)
    world.put(world.home, f"{world.home}-team-*, {world.gold}, kube-system", key="one")
    eventually(lambda: world.read(by_name) == {"key": "one"})
    eventually(lambda: world.read(by_label) == {"key": "one"})
    late = world.add_namespace("team-b")
    eventually(lambda: world.read(late) == {"key": "one"})
    assert world.read(other) is None
    assert world.read("kube-system") is None


def test_a_namespace_without_the_label_loses_its_copy(
    operator: OperatorRunner, world: World
) -> None:
    namespace = world.add_namespace("shop", world.gold)
    world.put(world.home, world.gold, key="one")
    eventually(lambda: world.read(namespace))
    world.add_namespace("shop")
    eventually(lambda: world.read(namespace) is None)


def test_a_copy_stays_as_its_source_is(operator: OperatorRunner, world: World) -> None:
    namespace = world.add_namespace("team-a")
    world.put(world.home, namespace, key="one", user="joe")
    eventually(lambda: world.read(namespace))
    world.put(world.home, namespace, key="two")
    eventually(lambda: world.read(namespace) == {"key": "two"})
    world.put(namespace, key="forged", more="forged")
    eventually(lambda: world.read(namespace) == {"key": "two"})
    world.delete(namespace)
    eventually(lambda: world.read(namespace) == {"key": "two"})


def test_copies_are_deleted_when_the_annotation_no_longer_matches(
    operator: OperatorRunner, world: World
) -> None:
    first, second = world.add_namespace("a"), world.add_namespace("b")
    world.put(world.home, f"{first}, {second}", key="one")
    eventually(lambda: world.read(first) and world.read(second))
    world.put(world.home, first, key="one")
    eventually(lambda: world.read(second) is None)
    assert world.read(first)
    world.put(world.home, key="one")
    eventually(lambda: world.read(first) is None)


def test_a_source_is_deleted_after_its_copies(operator: OperatorRunner, world: World) -> None:
    namespace = world.add_namespace("a")
    world.put(world.home, namespace, key="one")
    eventually(lambda: world.read(namespace))
    world.put(namespace, key="forged")  # to repair the copy, the operator must know it
    eventually(lambda: world.read(namespace) == {"key": "one"})
    eventually(lambda: world.get(world.home)["metadata"]["finalizers"])
    world.delete(world.home)
    eventually(lambda: world.get(world.home) is None)
    assert world.read(namespace) is None


def test_changes_while_the_operator_was_stopped_are_handled(
    run_operator: Callable[[], OperatorRunner], world: World
) -> None:
    first, second = world.add_namespace("a"), world.add_namespace("b")
    world.put(world.home, first, key="one")
    with run_operator():
        eventually(lambda: world.read(first))
    world.put(world.home, second, key="two")
    with run_operator():
        eventually(lambda: world.read(second) == {"key": "two"})
        eventually(lambda: world.read(first) is None)


def test_a_secret_of_somebody_else_is_never_changed(operator: OperatorRunner, world: World) -> None:
    namespace = world.add_namespace("a")
    world.put(namespace, key="mine")
    world.put(world.home, namespace, key="one")
    text = f"Namespace {namespace}: the Secret 'login' there belongs to somebody else."
    eventually(lambda: text in operator.output)
    world.put(world.home, key="one")
    world.delete(world.home)
    eventually(lambda: world.get(world.home) is None)
    assert world.read(namespace) == {"key": "mine"}


def test_a_copy_is_created_when_the_other_secret_is_deleted(
    operator: OperatorRunner, world: World
) -> None:
    namespace = world.add_namespace("a")
    world.put(namespace, key="mine")
    world.put(world.home, namespace, key="one")
    eventually(lambda: "somebody else" in operator.output)
    world.delete(namespace)
    eventually(lambda: world.read(namespace) == {"key": "one"})


def test_no_annotation_contains_secret_data(operator: OperatorRunner, world: World) -> None:
    world.put(world.home, world.add_namespace("a"), key="one")
    annotation = "kopf.zalando.org/last-handled-configuration"
    stored = eventually(lambda: world.get(world.home)["metadata"]["annotations"][annotation])
    assert base64.b64encode(b"one").decode() not in stored
