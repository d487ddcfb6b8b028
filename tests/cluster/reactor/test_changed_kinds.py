"""A kind that changes while the operator runs: work goes on, indexes stay exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.cluster.reactor.observations import Crowd, Names
from tests.kit.operators import (
    CRDS,
    Calls,
    Json,
    Kind,
    Objects,
    RunOperator,
    build_settings,
)
from tests.kit.waiting import eventually
from webop.client.api import Client

Change = Callable[[Json], list[Json]]


@pytest.fixture
async def ducks(client: Client, webop_namespace: str) -> Objects:
    """Objects of a kind of the test's own, to be changed."""
    kind = Kind(f"{webop_namespace}.changed.webop.dev", f"ducks-{webop_namespace}", "Duck")
    await kind.define(client)
    return Objects(client, kind, webop_namespace)


@pytest.fixture
def objects(ducks: Objects) -> Objects:
    """The ducks, for ``run_operator``."""
    return ducks


def gain_status(version: Json) -> list[Json]:
    """Add the status endpoint to a kind."""
    return [{**version, "subresources": {"status": {}}}]


def lose_status(version: Json) -> list[Json]:
    """Remove the status endpoint from a kind."""
    return [{**version, "subresources": {}}]


def prefer_next_version(version: Json) -> list[Json]:
    """Add version v2 to a kind, which is preferred to v1."""
    return [version, {**version, "name": "v2", "storage": False}]


async def has_status(objects: Objects, name: str) -> bool:
    """Tell whether the API server serves the status of an object that exists."""
    where = objects.kind.resource, objects.namespace, name
    return await objects.client.patch(*where, {"status": {}}, "status") is not None


async def change_kind(objects: Objects, change: Change = gain_status) -> None:
    """Change the versions of a kind."""
    client, name = objects.client, objects.kind.crd_name
    crd = await client.get(CRDS, None, name)
    versions = change(crd["spec"]["versions"][0])
    await client.patch(CRDS, None, name, {"spec": {"versions": versions}})


async def wait_noticed(objects: Objects, index: Names) -> None:
    """Wait until an operator indexes new objects of the changed kind."""
    number = 0
    while len(index.served) == 1:
        number += 1
        await objects.create(f"next-{number}")
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("change", [gain_status, prefer_next_version])
async def test_handlers_and_daemons_that_run_as_their_kind_changes_are_not_called_again(
    run_operator: RunOperator, ducks: Objects, change: Change
) -> None:
    crowd, index = Crowd(), Names(ducks.kind.crd_name)
    released = asyncio.Event()

    @webop.on.update(ducks.kind.crd_name, id="slow")
    async def slow(name: str, **_: Any) -> str:
        with crowd.enter(f"handler of {name}"):
            await released.wait()
            return "done"

    @webop.daemon(ducks.kind.crd_name, id="daemon")
    async def daemon(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(f"daemon of {name}"):
            await stopped.wait()

    async with run_operator(build_settings(batching={"exit_timeout": 0.2})):
        await ducks.make("one", {"a": 1})
        await ducks.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: crowd.present.total() == 2, "they run")
        await change_kind(ducks, change)
        await wait_noticed(ducks, index)
        released.set()
        await ducks.wait_handled("one")
        await eventually(lambda: crowd.present["daemon of one"] == 1, "the daemon runs")
        await ducks.remove("one")
    assert crowd.entries["handler of one"] == 1
    # With another version, it starts again: its body and its patches are of that version.
    assert crowd.entries["daemon of one"] == 1 + (change is prefer_next_version)
    assert set(crowd.most.values()) == {1}


async def test_a_foreign_kind_of_the_same_name_does_not_end_the_service_of_the_own_one(
    run_operator: RunOperator, ducks: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    crowd, kind = Crowd(), ducks.kind
    webop.on.create(kind.plural, id="created")(calls.noting("created"))

    @webop.daemon(kind.plural, id="daemon")
    async def daemon(stopped: webop.DaemonStopped, name: str, **_: Any) -> None:
        with crowd.enter(name):
            await stopped.wait()

    async with run_operator():
        await ducks.create("one")
        await eventually(lambda: crowd.present["one"] == 1, "the daemon runs")
        await Kind(f"foreign.{kind.group}", kind.plural, kind.kind).define(ducks.client)
        await eventually(lambda: "is ambiguous" in caplog.text, "it is noticed")
        await ducks.create("two")
        await calls.wait("two")
        await ducks.remove("one")
    assert crowd.entries == {"one": 1, "two": 1}
    (told,) = [text for text in caplog.messages if "is ambiguous" in text]
    assert f"Until the next start, webop continues with {kind.plural}.v1.{kind.group}." in told


async def test_handlers_wait_until_an_index_is_filled_that_gets_the_objects_of_a_kind_later(
    run_operator: RunOperator, ducks: Objects
) -> None:
    category, names = f"of-{ducks.namespace}", {"one", "two", "three"}
    found: list[set[str]] = []

    @webop.index(category=category, id="birds")
    async def birds(name: str, **_: Any) -> dict[str, None]:
        return {name: None}

    @webop.on.event(ducks.kind.crd_name, id="seen")
    async def seen(birds: webop.Index[str, None], **_: Any) -> None:
        found.append(set(birds))

    for name in names:
        await ducks.create(name)
    async with run_operator():
        await eventually(lambda: len(found) == 3, "the handlers are called")
        change = {"spec": {"names": {"categories": [category]}}}
        await ducks.client.patch(CRDS, None, ducks.kind.crd_name, change)
        await eventually(lambda: len(found) == 6, "the objects are listed again")
    assert found == [set()] * 3 + [names] * 3
