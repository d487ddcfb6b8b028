"""The API server in memory: what no real one can be asked for, as it depends on the moment."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from webop.testing.apiserver import (
    Change,
    Cluster,
    Json,
    Refusal,
    Request,
    Response,
    Review,
    Watch,
)

GROUP = "example.com"
THINGS = f"/apis/{GROUP}/v1/namespaces/default/things"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STREAMING = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


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
def cluster(clock: Clock) -> Cluster:
    made = Cluster(clock, random.Random(1))
    made.add_kind(GROUP, "things", "Thing")
    return made


def send(
    cluster: Cluster, method: str, path: str, body: Any = None, **query: str
) -> tuple[int, Json]:
    response = cluster.handle(build(method, path, body, **query))
    return response.status, response.body


def build(method: str, path: str, body: Any = None, **query: str) -> Request:
    form = "merge-patch+json" if method == "PATCH" else "json"
    headers = {"content-type": f"application/{form}"}
    return Request(method, path, query, headers, None if body is None else orjson.dumps(body))


def create(cluster: Cluster, name: str, **metadata: Any) -> Json:
    metadata["name"] = name
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": metadata, "spec": {"a": 1}}
    status, created = send(cluster, "POST", THINGS, body)
    assert status == 201
    return created


def watch(cluster: Cluster, path: str = THINGS, **query: str) -> Watch:
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


def get_version(cluster: Cluster) -> str:
    return str(cluster.version)


def test_the_same_requests_are_answered_the_same_with_uids_and_names(clock: Clock) -> None:
    def play() -> list[Json]:
        cluster = Cluster(clock, random.Random(7))
        cluster.add_kind(GROUP, "things", "Thing")
        body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"generateName": "a-"}}
        return [send(cluster, "POST", THINGS, body)[1] for _ in range(3)]

    assert play() == play()


def test_a_cache_that_lags_shows_the_past_until_it_catches_up(cluster: Cluster) -> None:
    stream = watch(cluster, resourceVersion=get_version(cluster))
    create(cluster, "one")
    cluster.lag = 1
    create(cluster, "two")
    assert take(stream) == [("ADDED", "one")]

    cached = send(cluster, "GET", THINGS, resourceVersion="0")[1]["items"]
    assert [raw["metadata"]["name"] for raw in cached] == ["one"]
    consistent = send(cluster, "GET", THINGS)[1]["items"]
    assert [raw["metadata"]["name"] for raw in consistent] == ["one", "two"]

    cluster.lag = 0
    assert take(stream) == [("ADDED", "two")]


def test_a_watch_from_what_the_cache_has_not_reached_brings_only_what_is_later(
    cluster: Cluster,
) -> None:
    cluster.lag = 10
    create(cluster, "one")
    stream = watch(cluster, resourceVersion=get_version(cluster))
    create(cluster, "two")
    assert take(stream) == []

    cluster.lag = 0
    assert take(stream) == [("ADDED", "two")]


def test_a_streaming_list_waits_for_the_newest_state_whatever_the_lag(cluster: Cluster) -> None:
    cluster.lag = 10
    create(cluster, "one")
    stream = watch(cluster, **STREAMING, allowWatchBookmarks="true")
    assert take(stream) == [("ADDED", "one"), ("BOOKMARK", "")]

    cluster.lag = 0
    assert take(stream) == []


def test_the_lag_can_be_of_one_resource_only(cluster: Cluster) -> None:
    cluster.add_kind(GROUP, "others", "Other")
    others = THINGS.replace("things", "others")
    things, rest = (
        watch(cluster, path, resourceVersion=get_version(cluster)) for path in (THINGS, others)
    )
    cluster.lag = lambda resource: 5 if resource == f"things.{GROUP}" else 0
    create(cluster, "one")
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Other", "metadata": {"name": "two"}}
    send(cluster, "POST", others, body)
    assert (take(things), take(rest)) == ([], [("ADDED", "two")])


def test_what_is_compacted_is_answered_with_410(cluster: Cluster) -> None:
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

    exact = {"resourceVersion": past, "resourceVersionMatch": "Exact"}
    assert send(cluster, "GET", THINGS, **exact)[0] == 410
    stream = watch(cluster, resourceVersion=past)
    assert (take(stream), stream.is_over) == ([("ERROR", "Expired")], True)


def test_watches_that_are_open_lose_nothing_by_a_compaction(cluster: Cluster) -> None:
    stream = watch(cluster, resourceVersion=get_version(cluster))
    cluster.lag = 1
    create(cluster, "one")
    cluster.compact()
    create(cluster, "two")
    cluster.lag = 0
    assert take(stream) == [("ADDED", "one"), ("ADDED", "two")]


def test_bookmarks_tell_what_the_cache_has_reached(cluster: Cluster) -> None:
    wanted, other = (
        watch(cluster, resourceVersion=get_version(cluster), allowWatchBookmarks=wish)
        for wish in ("true", "false")
    )
    version = create(cluster, "one")["metadata"]["resourceVersion"]
    cluster.lag = 1
    create(cluster, "two")
    cluster.send_bookmarks()
    assert wanted.events[-1]["type"] == "BOOKMARK"
    assert wanted.events[-1]["object"]["metadata"] == {"resourceVersion": version}
    assert take(other) == [("ADDED", "one")]


def test_a_closed_watch_brings_nothing_more(cluster: Cluster) -> None:
    stream = watch(cluster, resourceVersion=get_version(cluster))
    stream.close()
    create(cluster, "one")
    assert not stream.events


def test_observers_see_each_change_with_its_request(cluster: Cluster) -> None:
    seen: list[Change] = []
    cluster.observers.append(seen.append)
    create(cluster, "one", finalizers=["example.com/hold"])
    send(cluster, "PATCH", f"{THINGS}/one", {"spec": {"a": 1}})  # changes nothing
    send(cluster, "DELETE", f"{THINGS}/one")
    send(cluster, "PATCH", f"{THINGS}/one", {"metadata": {"finalizers": None}})
    verbs = [(change.verb, change.request and change.request.method) for change in seen]
    assert verbs == [("create", "POST"), ("update", "DELETE"), ("delete", "PATCH")]
    assert seen[1].old is seen[0].new
    assert seen[2].new is None


def install_hook(cluster: Cluster, way: str) -> None:
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


def answer(cluster: Cluster, request: Request, between: Request) -> Response:
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
    cluster: Cluster, way: str
) -> None:
    create(cluster, "one")
    other = build("PATCH", f"{THINGS}/one", {"spec": {"b": 2}})
    install_hook(cluster, way)
    response = answer(cluster, build("PATCH", f"{THINGS}/one", {"spec": {"c": 3}}), other)
    assert response.body["spec"] == {"a": 1, "b": 2, "c": 3}


def test_a_replacement_conflicts_if_the_object_changes_while_a_webhook_is_called(
    cluster: Cluster,
) -> None:
    created = create(cluster, "one")
    other = build("PATCH", f"{THINGS}/one", {"spec": {"b": 2}})
    install_hook(cluster, "Validating")
    response = answer(cluster, build("PUT", f"{THINGS}/one", {**created, "spec": {}}), other)
    assert response.status == 409


def test_a_webhook_that_cannot_be_called_denies_by_its_policy(cluster: Cluster) -> None:
    install_hook(cluster, "Validating")
    asked: list[Review] = []

    def admit(review: Review) -> Refusal:
        asked.append(review)
        return Refusal(503, "", "connection refused")

    cluster.admit = admit
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": "one"}}
    status, refusal = send(cluster, "POST", THINGS, body)
    assert (status, refusal["reason"]) == (500, "InternalError")
    assert asked[0].webhook["clientConfig"]["url"] == "https://hook"


def test_a_quota_denies_creations(cluster: Cluster) -> None:
    def deny(resource: str, raw: Json) -> Refusal | None:
        is_over = len(cluster.get_objects(resource)) >= 1
        return Refusal(403, "Forbidden", "exceeded quota") if is_over else None

    cluster.quota = deny
    create(cluster, "one")
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": "two"}}
    assert send(cluster, "POST", THINGS, body)[0] == 403


def test_discovery_and_serving_can_be_late(cluster: Cluster, clock: Clock) -> None:
    clock.time += timedelta(seconds=10)
    cluster.kinds.discovery_lag, cluster.kinds.serving_lag = 5.0, 2.0
    cluster.add_kind(GROUP, "others", "Other")
    path = THINGS.replace("things", "others")

    def look() -> tuple[list[str], int]:
        listed = send(cluster, "GET", f"/apis/{GROUP}/v1")[1]["resources"]
        return [resource["name"] for resource in listed], send(cluster, "GET", path)[0]

    clock.time += timedelta(seconds=1)
    assert look()[1] == 404
    clock.time += timedelta(seconds=2)
    assert look() == (["things"], 200)
    clock.time += timedelta(seconds=3)
    assert look() == (["others", "things"], 200)


def test_an_object_is_shown_in_each_version_of_its_kind(cluster: Cluster) -> None:
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
    groups = send(cluster, "GET", f"/apis/{GROUP}")[1]
    assert groups["preferredVersion"]["version"] == "v2"


def test_a_namespace_goes_when_finalizers_hold_nothing_in_it(cluster: Cluster) -> None:
    create(cluster, "held", finalizers=["example.com/hold"])
    send(cluster, "DELETE", "/api/v1/namespaces/default")
    assert not cluster.finish_namespace("default")
    send(cluster, "PATCH", f"{THINGS}/held", {"metadata": {"finalizers": None}})
    assert cluster.finish_namespace("default")
    assert send(cluster, "GET", "/api/v1/namespaces/default")[0] == 404


def test_a_body_that_is_too_large_is_refused(cluster: Cluster) -> None:
    create(cluster, "one")
    statuses = [
        send(cluster, "PATCH", f"{THINGS}/one", {"spec": {"text": "x" * size}})[0]
        for size in (1_000_000, 2_000_000, 4_000_000)
    ]
    assert statuses == [200, 500, 413]
