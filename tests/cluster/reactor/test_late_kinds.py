"""Kinds that selectors begin to match late: by a new name of a kind, or as the discovery lags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import CRDS, Calls, Kind, Objects, RunOperator, do_nothing
from tests.kit.rights import grant, read_vault
from tests.kit.waiting import eventually
from webop.client.api import Client

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@pytest.fixture
def geese(client: Client, webop_namespace: str) -> Objects:
    """Objects of a kind that is not in the cluster yet."""
    kind = Kind(f"{webop_namespace}.late.webop.dev", f"geese-{webop_namespace}", "Goose")
    return Objects(client, kind, webop_namespace)


@pytest.mark.parametrize("name", ["category", "shortNames"])
async def test_handlers_are_attached_when_their_selector_begins_to_match_a_watched_kind(
    run_operator: RunOperator, client: Client, geese: Objects, calls: Calls, name: str
) -> None:
    kind, word = geese.kind, f"{name.lower()}-{geese.namespace}"
    webop.on.create(kind.crd_name, id="exact")(calls.noting("exact"))
    if name == "category":
        webop.on.create(category=word, id="attached")(calls.noting("attached"))
        names: Any = {"categories": [word]}
    else:
        webop.on.create(word, id="attached")(calls.noting("attached"))
        names = {"shortNames": [word]}

    await kind.define(client)
    async with run_operator():
        await geese.make("before")
        await client.patch(CRDS, None, kind.crd_name, {"spec": {"names": names}})
        number = 0
        while not calls.of(f"after-{number}", "attached"):
            number += 1
            await geese.make(f"after-{number}")
            assert number < 500
        await geese.make("later")
    assert calls.handlers("before") == ["exact"]
    assert calls.handlers("later") == ["exact", "attached"]


async def test_a_kind_that_the_discovery_shows_late_is_served_then(
    relayed: Relay, run_relayed: RunOperator, client: Client, geese: Objects, calls: Calls
) -> None:
    category = f"late-{geese.namespace}"
    webop.on.create(geese.kind.crd_name, id="by name")(calls.noting("by name"))
    webop.on.create(category=category, id="by category")(calls.noting("by category"))
    relayed.hidden.add(geese.kind.group)
    async with run_relayed():
        await eventually(lambda: relayed.discoveries, "the first discovery")
        before = relayed.discoveries
        crd = geese.kind.build_crd()
        crd["spec"]["names"]["categories"] = [category]
        await client.create(CRDS, None, crd)
        await geese.kind.wait_served(client)
        await geese.create("one")
        await eventually(lambda: relayed.discoveries >= before + 3, "it is looked for")
        relayed.hidden.clear()
        await calls.wait("one", count=2)
    assert calls.handlers("one") == ["by name", "by category"]


async def test_who_may_not_watch_definitions_finds_a_late_kind_all_the_same(
    run_operator: RunOperator,
    webop_cluster: LocalCluster,
    client: Client,
    geese: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    webop.on.create(geese.kind.crd_name, id="created")(do_nothing)
    user = f"keeper-of-{geese.namespace}"
    await grant(client, user, geese.kind.crd_name, "*", geese.namespace)
    async with run_operator(vault=read_vault(webop_cluster, user)):
        await eventually(lambda: "is not in the cluster yet" in caplog.text, "it is missed")
        await geese.kind.define(client)
        await geese.make("one")
        text = "it looks for kinds every 30 s"
        await eventually(lambda: text in caplog.text, "the log says what follows")
