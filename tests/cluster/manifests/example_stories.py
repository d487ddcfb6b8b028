"""What the operators of the examples do when they do all that they can."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import httpx

from tests.kit.deployments import Admin
from tests.kit.http_relay import Relay
from tests.kit.waiting import eventually

Json = dict[str, Any]
Story = Callable[[Admin, Relay, str], Awaitable[None]]


def repeat_slowly(
    change: Callable[[Any], Awaitable[None]], values: Iterable[Any]
) -> Callable[[], Awaitable[None]]:
    """Return a function that makes the next change if the last one is a second old.

    An operator on a busy machine sees only the last of many quick changes.
    """
    turns, changed_at = itertools.cycle(values), 0.0

    async def make() -> None:
        nonlocal changed_at
        if time.monotonic() > changed_at + 1:
            await change(next(turns))
            changed_at = time.monotonic()

    return make


async def wait_told_twice(
    admin: Admin, namespace: str, text: str = "", act: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Wait for an Event with a text that counts twice; act each time before a look."""

    async def count() -> int:
        if act is not None:
            await act()
        events = (await admin.get(f"/api/v1/namespaces/{namespace}/events")).get("items", ())
        return max((one.get("count", 0) for one in events if text in one["message"]), default=0)

    await eventually(count, "an Event that counts twice", check=lambda found: found > 1)


async def play_claims(admin: Admin, relayed: Relay, namespace: str) -> None:
    """EphemeralVolumeClaims are created, resized and relabelled, one of them in vain."""
    evcs = f"/apis/kopf.dev/v1/namespaces/{namespace}/ephemeralvolumeclaims"
    pvcs = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    evc: Json = {"apiVersion": "kopf.dev/v1", "kind": "EphemeralVolumeClaim"}
    bad = {**evc, "metadata": {"name": "bad"}, "spec": {"size": "plenty"}}
    await admin.wait_refused(evcs, bad, "plenty")
    resources = {"requests": {"storage": "1G"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": resources}
    await admin.create(pvcs, {"metadata": {"name": "taken"}, "spec": spec})
    await admin.create(evcs, {**evc, "metadata": {"name": "taken"}, "spec": {}})
    good = await admin.create(evcs, {**evc, "metadata": {"name": "good"}, "spec": {}})
    assert good["spec"] == {"size": "1G"}
    done = {"pvc-name": "good"}
    await admin.wait(f"{evcs}/good", lambda it: it.get("status", {}).get("create_fn") == done)
    (owner,) = (await admin.get(f"{pvcs}/good"))["metadata"]["ownerReferences"]
    assert owner["uid"] == good["metadata"]["uid"]

    async def relabel(label: str) -> None:
        await admin.merge(f"{evcs}/good", {"metadata": {"labels": {"is": label}}})

    for label in ("one", "two"):
        await relabel(label)
        await admin.wait(f"{pvcs}/good", partial(has_labels, {"is": label}))
    more = repeat_slowly(relabel, ("three", "four"))

    async def is_counted_on() -> bool:
        await more()  # of repetitions that come before the first one is posted, there is no patch
        return bool(relayed.list_requests("PATCH", "events"))

    await eventually(is_counted_on, "an Event that counts on")


def has_labels(labels: Json, body: Json) -> bool:
    return bool(body["metadata"].get("labels") == labels)


HANDLERS = """\
import webop

LABELS = {"webop.dev/rights": "NAME"}

@webop.on.event("nodes", labels=LABELS)
@webop.on.create("configmaps", labels=LABELS)
@webop.on.update("configmaps", labels=LABELS)
@webop.on.delete("configmaps", labels=LABELS)
def see(body, **_):
    webop.info(body, reason="Seen", message="Seen.")
"""


async def play_in_a_namespace(name: str, admin: Admin, relayed: Relay, _: str) -> None:
    """An operator of one namespace looks at its ConfigMaps and at nodes, and has peers."""
    labels, home = {"webop.dev/rights": name}, f"rights-{name}"
    peering = f"/apis/kopf.dev/v1/namespaces/{home}/kopfpeerings"
    places = {"/api/v1/nodes": "default", f"/api/v1/namespaces/{home}/configmaps": home}
    kind = {"apiVersion": "kopf.dev/v1", "kind": "KopfPeering"}
    await admin.create(peering, {**kind, "metadata": {"name": "default"}})
    meddling = meddle_once(admin, relayed, f"/api/v1/namespaces/{home}/configmaps/{name}")
    for place in places:
        await admin.create(place, {"metadata": {"name": name, "labels": labels}})

    for place, namespace in places.items():
        events = f"/api/v1/namespaces/{namespace}/events"

        async def is_seen_twice(place: str = place, events: str = events) -> bool:
            patch = {"metadata": {"labels": {"now": str(len(relayed.answers))}}}
            await admin.merge(f"{place}/{name}", patch)
            found = [
                each
                for each in (await admin.get(events)).get("items", ())
                if each["involvedObject"]["name"] == name and each["message"] == "Seen."
            ]
            return any(each.get("count", 0) > 1 for each in found)

        await eventually(is_seen_twice, f"an Event in {namespace} that counts twice")
    assert meddling.is_set()
    for place in places:
        await admin.client.delete(f"{place}/{name}")
    await admin.wait_gone(f"/api/v1/namespaces/{home}/configmaps/{name}")


def meddle_once(admin: Admin, relayed: Relay, target: str) -> asyncio.Event:
    """Edit an object right before the operator does, so that this meets a conflict."""
    edited = asyncio.Event()

    async def meddle(request: httpx.Request) -> None:
        if request.method == "PATCH" and request.url.path == target:
            relayed.meddle = None
            edited.set()
            await admin.merge(target, {"metadata": {"labels": {"edited": "meanwhile"}}})

    relayed.meddle = meddle
    return edited


async def play_grants(admin: Admin, relayed: Relay, namespace: str) -> None:
    """Access is granted, prolonged and taken away, while somebody else edits the same grant."""
    grants = f"/apis/access.example.com/v1/namespaces/{namespace}/accessgrants"
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    grant: Json = {"apiVersion": "access.example.com/v1", "kind": "AccessGrant"}
    good = {**grant, "metadata": {"name": "jane"}, "spec": {"user": "jane", "role": "view"}}
    bad = {**good, "spec": {"user": "admin", "role": "view"}}
    # In this cluster, nobody fills it; to bind an empty role needs no right.
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    await admin.merge("/apis/rbac.authorization.k8s.io/v1/clusterroles/view", {"rules": rules})
    await admin.wait_refused(grants, bad, "cannot grant")  # to oneself
    edited = meddle_once(admin, relayed, f"{grants}/jane")
    await admin.create(grants, good)
    await admin.wait(f"{grants}/jane", lambda it: it.get("status", {}).get("phase") == "Open")
    assert edited.is_set()
    # Changes in quick succession can be handled as one.
    durations = itertools.cycle(("2h", "3h", "4h"))

    async def prolong() -> None:
        await admin.merge(f"{grants}/jane", {"spec": {"duration": next(durations)}})

    await wait_told_twice(admin, namespace, act=prolong)
    await admin.client.delete(f"{grants}/jane")
    await admin.wait_gone(f"{grants}/jane")
    assert not await admin.get(f"{bindings}/grant-jane")


async def play_policy(admin: Admin, _: Relay, namespace: str) -> None:
    """A pod is refused by the policy of the example."""
    containers = [{"name": "web", "image": "evil.com/web:1"}]
    pod = {"metadata": {"name": "web"}, "spec": {"containers": containers}}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await admin.wait_refused(pods, pod, "not from an allowed registry")


async def play_replication(admin: Admin, relayed: Relay, namespace: str) -> None:
    """A Secret is copied, changed, and deleted, while somebody else edits it, and is in its way."""
    secrets = "/api/v1/namespaces/{}/secrets"
    names = [f"{namespace}-{number}" for number in range(2)]
    for name in names:
        await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    await admin.create(secrets.format(names[1]), {"metadata": {"name": "login"}})
    source, copy = (f"{secrets.format(place)}/login" for place in (namespace, names[0]))
    meddling = meddle_once(admin, relayed, source)
    annotations = {"replicator.example.com/to": f"{namespace}-*"}
    metadata = {"name": "login", "annotations": annotations}
    await admin.create(secrets.format(namespace), {"metadata": metadata, "data": {"key": "b25l"}})

    async def is_equal() -> bool:
        return bool((await admin.get(copy)).get("data") == (await admin.get(source))["data"])

    await eventually(is_equal, "the copy")
    await admin.merge(source, {"data": {"key": "dHdv"}})
    await eventually(is_equal, "the change of the copy")
    assert meddling.is_set()

    key = "replicator.example.com/to"

    more = repeat_slowly(  # the timer ends and begins again
        lambda words: admin.merge(source, {"metadata": {"annotations": {key: words}}}),
        (None, annotations[key]),
    )

    await wait_told_twice(admin, namespace, "somebody else", more)  # about what is in the way
    await admin.merge(source, {"metadata": {"annotations": {key: names[0]}}})
    await eventually(is_equal, "the copy after all these changes")
    # Only a copy that the operator has seen goes with its source: it has, when it changes it.
    await admin.merge(source, {"data": {"key": "dHJlcw=="}})
    await eventually(is_equal, "the last change of the copy")
    await admin.client.delete(source)
    await admin.wait_gone(source)
    assert not await admin.get(copy)


async def play_tenants(admin: Admin, relayed: Relay, namespace: str) -> None:
    """A Tenant gets a database in spite of a Secret in the way, while somebody else edits it."""
    tenants = f"/apis/example.com/v1/namespaces/{namespace}/tenants"
    secret = f"/api/v1/namespaces/{namespace}/secrets/acme-database"
    await admin.create(secret.rpartition("/")[0], {"metadata": {"name": "acme-database"}})
    meddling = meddle_once(admin, relayed, f"{tenants}/acme")
    kind = {"apiVersion": "example.com/v1", "kind": "Tenant"}
    await admin.create(tenants, {**kind, "metadata": {"name": "acme"}, "spec": {}})

    def has_condition(kind: str, state: str, body: Json) -> bool:
        conditions = body.get("status", {}).get("conditions", ())
        return any((one["type"], one["status"]) == (kind, state) for one in conditions)

    await admin.wait(f"{tenants}/acme", partial(has_condition, "Ready", "False"))
    assert meddling.is_set()
    await wait_told_twice(admin, namespace)
    await admin.client.delete(secret)
    await admin.wait(f"{tenants}/acme", partial(has_condition, "Healthy", "True"))
    await admin.client.delete(f"{tenants}/acme")
    await admin.wait_gone(f"{tenants}/acme")
    await admin.client.delete(secret)  # else by the garbage collector, which is not there
