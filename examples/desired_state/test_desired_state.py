"""Tests of the three operators on a real API server: children that are spoilt come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backups import Backup
from tenant_databases import Tenant
from websites import Website

import webop
from webop.testing import LocalCluster, OperatorRunner, eventually

FOLDER = Path(__file__).parent
FILES = ("websites.py", "backups.py", "tenant_databases.py", "--all-namespaces")
CHILDREN = [
    ("apps/v1", "Deployment", "blog"),
    ("v1", "Service", "blog"),
    ("networking.k8s.io/v1", "Ingress", "blog"),
    ("v1", "PersistentVolumeClaim", "backup-photos"),
    ("batch/v1", "CronJob", "backup-photos"),
    ("v1", "Secret", "db-acme"),
    ("v1", "Service", "db-acme"),
    ("apps/v1", "StatefulSet", "db-acme"),
]
Child = tuple[str, str, str]
Run = Callable[..., OperatorRunner]


@pytest.fixture(scope="module", autouse=True)
def _kinds(webop_cluster: LocalCluster) -> None:
    for model in (Website, Backup, Tenant):
        webop_cluster.apply(model)


@pytest.fixture
def namespace(webop_cluster: LocalCluster) -> str:
    return webop_cluster.create_namespace()


def find(cluster: LocalCluster, child: Child, namespace: str) -> dict[str, Any]:
    """Return a child; nothing if there is none, or one that is about to go."""
    found: Any = cluster.get(*child, namespace)
    return found if found and "deletionTimestamp" not in found["metadata"] else {}


def wait_for_all(cluster: LocalCluster, namespace: str) -> dict[Child, dict[str, Any]]:
    """Return all children, as soon as they have an owner and labels."""

    def find_all() -> dict[Child, dict[str, Any]] | None:
        found = {child: find(cluster, child, namespace) for child in CHILDREN}
        whole = [
            one.get("metadata", {}).get("ownerReferences")
            and one["metadata"].get("labels", {}).get("webop.dev/owner")
            for one in found.values()
        ]
        return found if all(whole) else None

    found: dict[Child, dict[str, Any]] = eventually(find_all, timeout=40)
    return found


def patch(namespace: str, child: Child, change: dict[str, Any]) -> None:
    """Change a child, as a user does."""
    version, kind, name = child

    async def send() -> None:
        async with webop.client.connect(field_manager="somebody") as client:
            await client.patch((version, kind), name, change, namespace=namespace)

    asyncio.run(send())


def spoil(cluster: LocalCluster, namespace: str) -> None:
    """Do by hand what somebody does by mistake."""
    for child in (CHILDREN[0], CHILDREN[2], CHILDREN[6]):
        cluster.delete(*child, namespace)
    patch(namespace, CHILDREN[1], {"spec": {"selector": {"website": "other"}}})
    patch(namespace, CHILDREN[4], {"metadata": {"ownerReferences": None}})
    patch(namespace, CHILDREN[7], {"metadata": {"labels": None}})


@pytest.mark.parametrize("while_running", ["running", "stopped"])
def test_children_come_back(
    webop_operator: Run, webop_cluster: LocalCluster, namespace: str, while_running: str
) -> None:
    with webop_operator(*FILES):
        webop_cluster.apply(FOLDER / "objects.yaml", namespace=namespace)
        before = wait_for_all(webop_cluster, namespace)
        if while_running == "running":
            spoil(webop_cluster, namespace)
            check(webop_cluster, namespace, before)
    if while_running == "stopped":
        spoil(webop_cluster, namespace)
        with webop_operator(*FILES):
            check(webop_cluster, namespace, before)


def check(cluster: LocalCluster, namespace: str, before: dict[Child, dict[str, Any]]) -> None:
    """Check that all is as before, and that the password is still the same."""

    def is_right() -> bool:
        now = wait_for_all(cluster, namespace)
        selector: Any = now[CHILDREN[1]]["spec"]["selector"]
        return bool(selector == {"website": "blog"})

    eventually(is_right, timeout=30)
    secret = CHILDREN[5]
    assert find(cluster, secret, namespace)["data"] == before[secret]["data"]


def test_a_suspended_backup_keeps_its_volume_only(
    webop_operator: Run, webop_cluster: LocalCluster, namespace: str
) -> None:
    with webop_operator(*FILES):
        webop_cluster.apply(FOLDER / "objects.yaml", namespace=namespace)
        wait_for_all(webop_cluster, namespace)
        patch(namespace, ("example.com/v1", "Backup", "photos"), {"spec": {"suspend": True}})
        eventually(lambda: not find(webop_cluster, CHILDREN[4], namespace))
        assert find(webop_cluster, CHILDREN[3], namespace)
