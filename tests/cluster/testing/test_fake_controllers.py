"""What controllers do: the client without a cluster does it as the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop.testing import FakeClient, LocalCluster

Json = dict[str, Any]

LABELS = {"app": "web"}
POD = {"containers": [{"name": "web", "image": "web:1"}]}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": POD}
KEPT = {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}
JOB = {"template": {"spec": {**POD, "restartPolicy": "Never"}}}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(controller_manager=True) as cluster:
        yield cluster


def build(kind: str, version: str, **spec: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "one"}, "spec": spec}


def build_map(name: str, *owners: Json, blocks: bool = True, **metadata: Any) -> Json:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": blocks,
        }
        for owner in owners
    ]
    metadata |= {"name": name, "ownerReferences": references}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def play(client: webop.AsyncClient, place: str, policy: str | None, *, blocks: bool) -> None:
    """Create a family, and delete its head."""

    async def create(name: str, *owners: Json, **metadata: Any) -> Json:
        body = build_map(name, *owners, blocks=blocks, **metadata)
        return await client.create(body, namespace=place)

    head, other = await create("head"), await create("other")
    child = await create("child", head)
    await create("grandchild", child)
    await create("held", head, finalizers=["example.com/hold"])
    await create("shared", head, other)
    await client.delete("configmaps", "head", namespace=place, propagation=policy)  # type: ignore[arg-type]


async def look(client: webop.AsyncClient, place: str) -> Json:
    """Return what is left: whether it is being deleted, its finalizers, and its owners."""
    return {
        one["metadata"]["name"]: (
            "deletionTimestamp" in one["metadata"],
            one["metadata"].get("finalizers"),
            [owner["name"] for owner in one["metadata"].get("ownerReferences", ())],
        )
        for one in await client.list("configmaps", namespace=place)
        if one["metadata"]["name"] != "kube-root-ca.crt"
    }


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [
        (None, True),
        ("Background", False),
        ("Foreground", True),
        ("Foreground", False),
        ("Orphan", True),
    ],
)
async def test_dependents_of_deleted_owners_go_or_stay_as_on_a_cluster(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, policy: str | None, blocks: bool
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    fake, place = FakeClient(garbage_collection=True), cluster.create_namespace()
    await play(fake, "default", policy, blocks=blocks)
    wanted = await look(fake, "default")
    release = {"metadata": {"finalizers": None}}
    async with webop.client.connect() as real:
        await play(real, place, policy, blocks=blocks)
        await eventually(lambda: look(real, place), check=lambda found: found == wanted)
        await asyncio.sleep(0.5)  # it stays so
        assert await look(real, place) == wanted
        for client, namespace in ((fake, "default"), (real, place)):
            await client.patch("configmaps", "held", release, namespace=namespace)
        wanted = await look(fake, "default")
        await eventually(lambda: look(real, place), check=lambda found: found == wanted)
        await asyncio.sleep(0.5)  # the real one passes through states of the other
        assert await look(real, place) == wanted


@pytest.mark.usefixtures("webop_kubeconfig")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("deployments.apps", build("Deployment", "apps/v1", **KEPT, replicas=2)),
        ("replicasets.apps", build("ReplicaSet", "apps/v1", **KEPT)),
        ("statefulsets.apps", build("StatefulSet", "apps/v1", **KEPT, serviceName="web")),
        ("daemonsets.apps", build("DaemonSet", "apps/v1", **KEPT)),
        ("pods", build("Pod", "v1", **POD)),
        ("jobs.batch", build("Job", "batch/v1", **JOB, completions=2)),
    ],
)
@rows("succeeded", [True, False])
async def test_an_api_server_accepts_the_statuses_that_tests_write(
    webop_cluster: LocalCluster, kind: str, body: Json, succeeded: bool
) -> None:
    place = webop_cluster.create_namespace()
    fake = FakeClient({**body, "metadata": {"name": "one"}}, now=NOW)
    if kind == "jobs.batch" or (kind == "pods" and not succeeded):
        played = await fake.finish(kind, "one", namespace="default", succeeded=succeeded)
    else:
        played = await fake.make_ready(kind, "one", namespace="default")
    async with webop.client.connect() as real:
        await real.create(body, namespace=place)
        status = {"status": played["status"]}
        stored = await real.patch(kind, "one", status, namespace=place, subresource="status")
    for condition in stored["status"].get("conditions", ()):
        if condition.get("lastProbeTime", "") is None:
            del condition["lastProbeTime"]
    assert stored["status"] == played["status"]
    found = await fake.get(kind, "one", namespace="default")
    assert found["status"] == played["status"]


async def test_finished_jobs_have_their_conditions_counts_and_times() -> None:
    client = FakeClient(build("Job", "batch/v1", **JOB), now=NOW)
    client.clock.advance(minutes=5)
    job = await client.finish("jobs.batch", "one", namespace="default")
    found = await client.wait_for("jobs.batch", "one", "Complete", namespace="default")
    assert found == job
    assert job["status"]["startTime"] == "2026-01-01T00:00:00Z"
    assert job["status"]["completionTime"] == "2026-01-01T00:05:00Z"
    assert await client.list("jobs.batch", fields={"status.successful": "1"})


async def test_only_kinds_with_pods_become_ready() -> None:
    client = FakeClient(build_map("one"))
    with pytest.raises(ValueError, match=r"make_ready\(\) knows DaemonSet, .*, not ConfigMap"):
        await client.make_ready("configmaps", "one", namespace="default")
