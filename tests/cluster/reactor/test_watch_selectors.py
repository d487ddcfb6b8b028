"""Selectors of watches: objects that never match them, leave them, and come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    DIFFBASE,
    FINALIZER,
    Calls,
    Json,
    Objects,
    RunOperator,
    build_settings,
    get_annotations,
    has_finalizer,
    operate,
)
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo

IN, OUT = {"watched": "yes"}, {"watched": None}


def choose(**watching: Any) -> webop.OperatorSettings:
    """Return settings with which widgets are watched by a label."""
    settings = build_settings(watching={"reconnect_backoff": 0.05, **watching})
    settings.watching.label_selectors["widgets"] = "watched=yes"
    return settings


@pytest.fixture
def events() -> list[tuple[Any, str]]:
    """What event handlers get."""
    found: list[tuple[Any, str]] = []

    @webop.on.event("widgets")
    async def event(type: Any, name: str, **_: Any) -> None:
        found.append((type, name))

    return found


@pytest.fixture
def memos(calls: Calls) -> list[Any]:
    """Declare handlers of creations, updates and deletions; return the memos of the calls."""
    found: list[Any] = []

    async def note(reason: str, memo: Any, **kwargs: Any) -> None:
        calls.note(reason, kwargs)
        found.append(memo)

    for decorator in (webop.on.create, webop.on.update, webop.on.delete):
        decorator("widgets", id="note")(note)
    return found


async def label(objects: Objects, name: str, labels: Json) -> None:
    await objects.patch(name, {"metadata": {"labels": labels}})


@pytest.mark.feature("REF-50", "FLT-28")
async def test_only_objects_in_the_selector_are_seen(
    objects: Objects, run_operator: RunOperator, calls: Calls, memos: list[Any]
) -> None:
    await objects.create("old-out")
    await objects.create("old-in", labels=IN)
    async with run_operator(choose()):
        await objects.create("out")
        await objects.create("in", labels=IN)
        await calls.wait("in", "create")
        await calls.wait("old-in", "create")
        await objects.wait("in", lambda raw: DIFFBASE in get_annotations(raw))
        await objects.remove("in")
        await label(objects, "out", IN)
        await calls.wait("out", "create")
    assert calls.handlers("in") == ["create", "delete"]
    assert not calls.of("old-out")


@pytest.mark.feature("REF-50", "SCP-01", "RES-18")
async def test_the_start_shows_the_selectors_and_warns_of_a_key_that_matches_no_watched_kind(
    run_operator: RunOperator, objects: Objects, memos: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = choose()
    settings.watching.field_selectors["widgets"] = "metadata.name!=x"
    settings.watching.label_selectors["widgetz"] = "watched=yes"
    settings.watching.label_selectors["ns"] = f"kubernetes.io/metadata.name={objects.namespace}"
    async with run_operator(settings):
        await eventually(lambda: "It serves" in caplog.text)
    kinds = "widgets.v1.tests.webop.dev (watched=yes and metadata.name!=x)"
    assert caplog.text.count(f"{kinds} in namespaces: {objects.namespace}.") == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (text,) = warnings
    assert "label_selectors has the key widgetz, which matches no watched kind" in text


@pytest.mark.feature("EVT-06")
async def test_an_object_that_leaves_is_released_and_comes_back_as_a_known_one(
    objects: Objects,
    run_operator: RunOperator,
    calls: Calls,
    memos: list[Any],
    events: list[tuple[Any, str]],
) -> None:
    reasons: list[Any] = []
    indexes: list[Any] = []

    @webop.on.event("widgets", id="look")
    async def look(names: webop.Index[Any, Any], **_: Any) -> None:
        indexes.append(sorted(names))

    @webop.index("widgets", id="names")
    async def index(name: str, **_: Any) -> Json:
        return {name: True}

    @webop.daemon("widgets")
    async def guard(name: str, stopped: webop.DaemonStopped, **_: Any) -> None:
        reasons.append("started")
        await stopped.wait()
        reasons.append(stopped.reason)

    async with run_operator(choose()):
        await objects.create("a", {"value": 1}, labels=IN)
        await calls.wait("a", "create")
        await objects.wait("a", lambda raw: has_finalizer(raw) and DIFFBASE in get_annotations(raw))
        await eventually(lambda: reasons == ["started"])
        await objects.patch(
            "a", {"metadata": {"labels": OUT, "finalizers": [FINALIZER, "x.org/other"]}}
        )
        left = await objects.wait("a", lambda raw: not has_finalizer(raw))
        assert left["metadata"]["finalizers"] == ["x.org/other"]
        assert "RESOURCE_DELETED" in str(reasons[1])
        await eventually(lambda: ("DELETED", "a") in events)
        assert indexes[-1] == []
        await objects.patch("a", {"spec": {"value": 2}})
        await objects.create("b", labels=IN)  # a fence
        await calls.wait("b", "create")
        assert calls.handlers("a") == ["create"]
        await label(objects, "a", IN)
        await calls.wait("a", "update")
        await objects.wait("a", has_finalizer)
        await eventually(lambda: reasons[2:] == ["started"] * 2)  # that of b, too
        await objects.patch("a", {"metadata": {"finalizers": [FINALIZER]}})
        await objects.remove("a")
        await eventually(lambda: events.count(("DELETED", "a")) == 2)
    assert calls.handlers("a") == ["create", "update", "delete"]
    assert memos[0] is not memos[2]


@pytest.mark.feature("SCP-13")
async def test_selectors_of_namespaces_choose_among_the_served_ones(
    client: Client, objects: Objects, info: ConnectionInfo, calls: Calls
) -> None:

    registry = webop.OperatorRegistry()

    webop.on.create("widgets", registry=registry)(calls.noting("create"))

    namespaces = webop.Resource("", "v1", "namespaces", kind="Namespace", namespaced=False)
    settings = build_settings()
    settings.watching.label_selectors["ns"] = f"of={objects.namespace}"
    settings.watching.label_selectors[webop.EVERYTHING] = "watched=yes"
    async with operate(info, registry, settings, namespaces=[f"{objects.namespace}*"]):
        await objects.create("a", labels=IN)
        await objects.create("b")
        await asyncio.sleep(0.5)
        assert not calls.of("a")
        patch = {"metadata": {"labels": {"of": objects.namespace}}}
        await client.patch(namespaces, None, objects.namespace, patch)
        await calls.wait("a", "create")
    assert not calls.of("b")


@pytest.mark.feature("EVT-06", "HND-18")
@pytest.mark.parametrize("moment", ["retry", "call"])
async def test_an_object_that_leaves_while_it_is_being_deleted_goes_away(
    objects: Objects, run_operator: RunOperator, calls: Calls, moment: str
) -> None:
    has_left = asyncio.Event()

    @webop.on.delete("widgets", id="deleted")
    async def deleted(**kwargs: Any) -> None:
        calls.note("deleted", kwargs)
        if moment == "call":
            await has_left.wait()
        elif not has_left.is_set():
            raise webop.TemporaryError("not yet", delay=0.2)

    async with run_operator(choose()):
        await objects.create("a", labels=IN)
        await objects.wait("a", has_finalizer)
        await objects.delete("a")
        await calls.wait("a", "deleted")
        await label(objects, "a", OUT)
        has_left.set()
        await objects.wait_gone("a", timeout=5)
