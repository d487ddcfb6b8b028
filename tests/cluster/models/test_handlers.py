"""Handlers with models on the real API server: arguments, misfits, statuses, conditions."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import Field

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import (
    Kind,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    get_annotations,
    operate,
    wait_for_events,
)
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.models.crds import build_crds
from webop.testing import LocalCluster


class BoatSpec(webop.Struct):
    size: int = Field(default=1, ge=0)
    home_port: str | None = None


class BoatStatus(webop.Struct):
    observed: int | None = None
    conditions: webop.Conditions = Field(default_factory=webop.Conditions)


@webop.resource("models.webop.dev", "v1", columns={"Ready": webop.Conditions.column("Ready")})
class Boat(webop.Model):
    spec: BoatSpec
    status: BoatStatus | None = None


@pytest.fixture(scope="module")
def boats(webop_cluster: LocalCluster) -> Kind:
    """The kind, as its model says, but with an older schema, which allows more."""
    (crd,) = build_crds([Boat])
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = loose
    webop_cluster.apply(crd)
    return Kind("models.webop.dev", "boats", "Boat", has_status=True)


@pytest.fixture
def objects(client: Client, boats: Kind, webop_namespace: str) -> Objects:
    return Objects(client, boats, webop_namespace)


async def wait_stored(objects: Objects, name: str) -> Any:
    return await objects.wait(
        name, lambda body: any("last-handled" in k for k in get_annotations(body))
    )


async def test_a_returned_model_becomes_the_status(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.create(Boat)
    def create(body: Boat, **_: Any) -> BoatStatus:
        status = body.status or BoatStatus()
        status.observed = body.spec.size
        status.conditions.set("Ready", True, "Built", generation=body.metadata.generation)
        return status

    async with run_operator():
        await objects.create("one", {"size": 2})
        body = await wait_stored(objects, "one")
    assert body["status"]["observed"] == 2
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Ready",
        "True",
        "Built",
    )
    assert condition["lastTransitionTime"]


async def test_a_timer_that_returns_the_status_that_is_there_writes_nothing(
    run_relayed: RunOperator, relayed: Relay, objects: Objects
) -> None:
    calls = 0

    @webop.timer(Boat, interval=0.1)
    async def look(**_: Any) -> BoatStatus:
        nonlocal calls
        calls += 1
        return BoatStatus(observed=min(calls, 3))

    async with run_relayed():
        await objects.create("one", {"size": 2})
        await eventually(lambda: calls == 8)
    assert len(relayed.list_requests("PATCH", "status")) == 3


async def test_an_object_that_does_not_fit_waits_until_it_does(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    """The log, the condition and an Event name the field and its value."""
    created: list[tuple[str, int]] = []
    deleted: list[Any] = []

    @webop.on.delete(Boat)
    async def delete(spec: BoatSpec, **_: Any) -> None:
        given: Any = spec
        deleted.append(given if isinstance(given, BoatSpec) else dict(given))

    @webop.on.create(Boat)
    async def create(spec: BoatSpec, name: str, **_: Any) -> None:
        created.append((name, spec.size))

    with caplog.at_level(logging.INFO):
        async with run_operator(build_settings(posting={"enabled": True})):
            await objects.create("bad", {"size": "large"})
            await objects.create("good", {"size": 1})
            await wait_stored(objects, "good")  # one bad object does not stop the kind
            body = await objects.wait("bad", lambda body: body.get("status"))
            (condition,) = body["status"]["conditions"]
            assert condition["type"], condition["status"] == ("Valid", "False")
            assert condition["message"].startswith("spec.size: ")
            assert condition["message"].endswith(", got 'large'")
            (event,) = await wait_for_events(objects, "bad", bool)
            assert event["reason"] == "Misfit"
            await objects.patch("bad", {"metadata": {"labels": {"a": "b"}}})
            await objects.patch("bad", {"spec": {"size": 5}})
            await wait_stored(objects, "bad")
            body = await objects.wait(
                "bad", lambda body: body["status"]["conditions"][0]["status"] == "True"
            )
            await objects.remove("good")
            await objects.patch("bad", {"spec": {"size": "small"}})
            await objects.remove("bad")
    assert deleted == [BoatSpec(size=1), {"size": "small"}]
    assert sorted(created) == [("bad", 5), ("good", 1)]
    errors = [record for record in caplog.records if "does not fit" in record.getMessage()]
    assert len(errors) == 1
    assert "spec.size" in errors[0].getMessage()


async def test_what_a_failed_conversion_has_left_is_neither_handled_nor_written(
    run_operator: RunOperator, objects: Objects
) -> None:
    calls: list[str] = []
    kept = {"kept.webop.dev/v0": '{"spec":{}}'}

    @webop.reconcile(Boat)
    async def build(**_: Any) -> None:
        calls.append("reconcile")

    @webop.on.create("boats.models.webop.dev")
    @webop.on.event("boats.models.webop.dev", id="see")
    @webop.daemon(Boat)
    @webop.timer("boats.models.webop.dev", interval=0.1, id="tick")
    async def call(**_: Any) -> None:
        calls.append("other")

    @webop.on.delete(Boat)
    async def delete(name: str, **_: Any) -> None:
        calls.append(f"delete {name}")

    async with run_operator(build_settings(posting={"enabled": True})):
        await objects.create("one", {"size": 1}, annotations=kept)
        made = await objects.create("two", {"size": "large"}, annotations=kept)
        (event,) = await wait_for_events(objects, "one", bool)
        command = f"kubectl annotate boats.models.webop.dev one --namespace {objects.namespace}"
        assert event["reason"] == "Misfit"
        assert "it could not be converted from v0. Correct it there" in event["message"]
        assert f"{command} kept.webop.dev/v0-" in event["message"]
        await wait_for_events(objects, "two", bool)
        assert await objects.get("two") == made
        assert calls == []
        await objects.patch("one", {"metadata": {"annotations": {"kept.webop.dev/v0": None}}})
        await wait_stored(objects, "one")
        await eventually(lambda: {*calls} == {"reconcile", "other"})
        await objects.patch("one", {"metadata": {"annotations": kept}})
        await objects.remove("one")
        await eventually(lambda: "delete one" in calls)


async def test_a_former_state_that_does_not_fit_is_a_mapping(
    run_operator: RunOperator, objects: Objects
) -> None:
    seen: list[Any] = []
    loose = webop.OperatorRegistry()
    webop.on.create("boats.models.webop.dev", registry=loose)(do_nothing)

    @webop.on.update(Boat)
    async def update(old: BoatSpec, spec: BoatSpec, **_: Any) -> None:
        seen.append((old, spec))

    await objects.create("one", {"size": "large"})
    async with operate(run_operator.args[0], loose, namespaces=[objects.namespace]):  # type: ignore[attr-defined]
        await wait_stored(objects, "one")
    async with run_operator():
        await objects.patch("one", {"spec": {"size": 4}})
        await eventually(lambda: seen)
    assert seen == [({"size": "large"}, BoatSpec(size=4))]
