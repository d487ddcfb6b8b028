"""The API server in memory: what no real one can be asked for, as it depends on the moment."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tests.kit.memory_cluster import MemoryCluster
from webop.testing.apiserver import (
    Json,
    Request,
    Response,
    Watch,
)

GROUP = "example.com"
THINGS = f"/apis/{GROUP}/v1/namespaces/default/things"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Clock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> MemoryCluster:
    made = MemoryCluster(clock, random.Random(1))
    made.add_kind(GROUP, "things", "Thing")
    return made


def send(
    cluster: MemoryCluster, method: str, path: str, body: Any = None, **query: str
) -> tuple[int, Json]:
    response = cluster.handle(build(method, path, body, **query))
    return response.status, response.body


def build(method: str, path: str, body: Any = None, **query: str) -> Request:
    form = "merge-patch+json" if method == "PATCH" else "json"
    headers = {"content-type": f"application/{form}"}
    return Request(method, path, query, headers, None if body is None else orjson.dumps(body))


def create(cluster: MemoryCluster, name: str, **metadata: Any) -> Json:
    metadata["name"] = name
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": metadata, "spec": {"a": 1}}
    status, created = send(cluster, "POST", THINGS, body)
    assert status == 201
    return created


def watch(cluster: MemoryCluster, path: str = THINGS, **query: str) -> Watch:
    opened = cluster.watch(Request("GET", path, {"watch": "true", **query}))
    assert isinstance(opened, Watch)
    return opened


def take(stream: Watch) -> list[tuple[str, str]]:
    """Take the events that wait: their types and the names of their objects."""
    events = []
    while stream.events:
        event = stream.events.popleft()
        metadata = event["object"]["metadata"]
        events.append((event["type"], metadata.get("name", event["object"].get("reason", ""))))
    return events


def get_version(cluster: MemoryCluster) -> str:
    return str(cluster.store.version)


def test_a_cache_that_lags_shows_the_past_until_it_catches_up(cluster: MemoryCluster) -> None:
    stream = watch(cluster, resourceVersion=get_version(cluster))
    create(cluster, "one")
    cluster.set_lag(1)
    create(cluster, "two")
    assert take(stream) == [("ADDED", "one")]

    consistent = send(cluster, "GET", THINGS)[1]["items"]
    assert [raw["metadata"]["name"] for raw in consistent] == ["one", "two"]

    cluster.set_lag(0)
    assert take(stream) == [("ADDED", "two")]


def test_what_is_compacted_is_answered_with_410(cluster: MemoryCluster) -> None:
    create(cluster, "one")
    page = send(cluster, "GET", THINGS, limit="1")[1]
    create(cluster, "two")
    page = send(cluster, "GET", THINGS, limit="1")[1]
    past = page["metadata"]["resourceVersion"]
    create(cluster, "three")
    cluster.compact()

    status, body = send(cluster, "GET", THINGS, **{"continue": page["metadata"]["continue"]})
    assert (status, body["reason"]) == (410, "Expired")
    # With the token of the answer, the rest of the newest state can be had.
    token = body["metadata"]["continue"]
    rest = send(cluster, "GET", THINGS, **{"continue": token})[1]["items"]
    assert [raw["metadata"]["name"] for raw in rest] == ["three", "two"]

    stream = watch(cluster, resourceVersion=past)
    assert (take(stream), stream.is_over) == ([("ERROR", "Expired")], True)


def install_hook(cluster: MemoryCluster, way: str) -> None:
    rule = {"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}
    webhook = {
        "name": "hook.example.com",
        "clientConfig": {"url": "https://hook"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    group = "admissionregistration.k8s.io"
    body = {
        "apiVersion": f"{group}/v1",
        "kind": f"{way}WebhookConfiguration",
        "metadata": {"name": "hook"},
        "webhooks": [webhook],
    }
    path = f"/apis/{group}/v1/{way.lower()}webhookconfigurations"
    assert send(cluster, "POST", path, body)[0] == 201


def answer(cluster: MemoryCluster, request: Request, between: Request) -> Response:
    """Carry out a request; another one comes while its webhook is called for the first time."""
    steps = cluster.perform(request)
    review = next(steps)
    assert cluster.handle(between).status == 200
    while True:
        verdict: Json = {"response": {"uid": review["request"]["uid"], "allowed": True}}
        try:
            review = steps.send(verdict)
        except StopIteration as exc:
            response: Response = exc.value
            return response


@pytest.mark.parametrize("way", ["Mutating", "Validating"])
def test_a_patch_is_applied_again_if_the_object_changes_while_a_webhook_is_called(
    cluster: MemoryCluster, way: str
) -> None:
    create(cluster, "one")
    other = build("PATCH", f"{THINGS}/one", {"spec": {"b": 2}})
    install_hook(cluster, way)
    response = answer(cluster, build("PATCH", f"{THINGS}/one", {"spec": {"c": 3}}), other)
    assert response.body["spec"] == {"a": 1, "b": 2, "c": 3}


def test_a_replacement_conflicts_if_the_object_changes_while_a_webhook_is_called(
    cluster: MemoryCluster,
) -> None:
    created = create(cluster, "one")
    other = build("PATCH", f"{THINGS}/one", {"spec": {"b": 2}})
    install_hook(cluster, "Validating")
    response = answer(cluster, build("PUT", f"{THINGS}/one", {**created, "spec": {}}), other)
    assert response.status == 409


def test_an_object_is_shown_in_each_version_of_its_kind(cluster: MemoryCluster) -> None:
    path = f"{CRDS}/things.{GROUP}"
    versions = send(cluster, "GET", path)[1]["spec"]["versions"]
    newer = {**versions[0], "name": "v2", "storage": False}
    send(cluster, "PATCH", path, {"spec": {"versions": [*versions, newer]}})
    create(cluster, "one")
    newer_path = THINGS.replace("/v1/", "/v2/")
    stream = watch(cluster, newer_path, resourceVersion=get_version(cluster))
    status, patched = send(cluster, "PATCH", f"{newer_path}/one", {"spec": {"b": 2}})
    assert (status, patched["apiVersion"]) == (200, f"{GROUP}/v2")
    assert stream.events[0]["object"] == patched
    stored = send(cluster, "GET", f"{THINGS}/one")[1]
    assert stored == {**patched, "apiVersion": f"{GROUP}/v1"}
    groups = {one["metadata"]["name"]: one for one in send(cluster, "GET", "/apis")[1]["items"]}
    assert [one["version"] for one in groups[GROUP]["versions"]] == ["v2", "v1"]


def test_a_body_that_is_too_large_is_refused(cluster: MemoryCluster) -> None:
    create(cluster, "one")
    statuses = [
        send(cluster, "PATCH", f"{THINGS}/one", {"spec": {"text": "x" * size}})[0]
        for size in (1_000_000, 2_000_000, 4_000_000)
    ]
    assert statuses == [200, 500, 413]
