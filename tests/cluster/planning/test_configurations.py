"""What a plan says about webhooks, definitions and rules: compared with those in the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from tests.kit.managed_webhooks import KINDS
from tests.kit.plans import Desk, Planned
from tests.kit.waiting import eventually
from webop.errors import APINotFoundError
from webop.handlers.model import WebhookType

Json = dict[str, Any]

WEBHOOKS = """
@webop.on.startup()
def serve(settings, **_):
    settings.admission.server = webop.WebhookServer(port=0)
    settings.admission.managed = {name!r}

@webop.on.validate('kiosks', persistent=True, failure_policy='Ignore', timeout_seconds={seconds})
def check(**_): ...
"""


@pytest.fixture
async def managed(desk: Desk) -> AsyncIterator[str]:
    """The name of webhook configurations that are removed after the test."""
    name = f"{desk.namespace}.plan.webop.dev"
    yield name
    for kind in KINDS.values():
        try:
            await desk.client.delete(kind, None, name)
        except APINotFoundError:
            continue


def list_webhooks(planned: Planned) -> list[Json]:
    sections = planned.document["sections"]
    return [n for one in sections if one["title"] == "Webhook configurations" for n in one["notes"]]


async def test_webhooks_are_compared_with_those_in_force(desk: Desk, managed: str) -> None:
    desk.write(WEBHOOKS.format(name=managed, seconds=7))
    planned = await desk.plan()
    (note,) = list_webhooks(planned)
    assert planned.code == 2
    assert (note["action"], note["certainty"]) == ("create", "will")
    assert note["target"] == (
        f"the webhook check.{managed} in the ValidatingWebhookConfiguration {managed}"
    )
    assert {"field": "timeoutSeconds", "old": None, "new": 7} in note["fields"]
    text = (await desk.plan(form="text")).output
    assert "Other changes: 1." in text.splitlines()  # the exit status says so, too
    kind = KINDS[WebhookType.VALIDATING]
    async with desk.run() as command:
        await command.wait_for("Webhooks in")
        await eventually(lambda: desk.client.get(kind, None, managed), ignoring=APINotFoundError)
        same = await desk.plan()
        assert list_webhooks(same) == []
        assert same.code == 0
        desk.write(WEBHOOKS.format(name=managed, seconds=9))
        planned = await desk.plan()
        (note,) = list_webhooks(planned)
        assert (note["action"], note["certainty"]) == ("change", "may")
        assert "when the replicas" in note["reason"]
        assert note["fields"] == [{"field": "timeoutSeconds", "old": 7, "new": 9}]
        stored = await desk.client.get(kind, None, managed)
        assert stored["webhooks"][0]["timeoutSeconds"] == 7
    (note,) = list_webhooks(await desk.plan())
    assert (note["action"], note["certainty"]) == ("change", "will")


MODEL = """
import pydantic

class CrateSpec(webop.Struct):
    size: int = pydantic.Field(1, le={most})

@webop.resource({group!r}, "v1")
class Crate(webop.Model):
    spec: CrateSpec

@webop.on.create(Crate)
def made(**_): ...

webop.rule(Crate, id='small-crates', cel='object.spec.size < 3', message='too large')
"""


async def test_definitions_and_rules_are_for_the_reader(desk: Desk) -> None:
    group = f"{desk.namespace}.plan.webop.dev"
    desk.write(MODEL.format(group=group, most=9))
    planned = await desk.plan()
    assert planned.code == 0, planned.output
    (note,) = planned.section("CustomResourceDefinitions")["notes"]
    assert (note["action"], note["target"]) == ("create", f"crates.{group}")
    assert "'webop crd apply' does it" in note["reason"]
    (note,) = planned.section("Rules")["notes"]
    assert (note["action"], note["certainty"]) == ("create", "may")
    applied = await desk.command("crd", "apply")
    assert applied.code == 0, applied.errors
    printed = await desk.command("manifests", "--cluster")
    assert printed.code == 0, printed.errors
    for body in yaml.safe_load_all(printed.output):
        if "AdmissionPolicy" in body["kind"]:
            desk.cluster.apply(body)
    planned = await desk.plan()
    titles = {one["title"] for one in planned.document["sections"]}
    assert not {"CustomResourceDefinitions", "Rules"} & titles, planned.output
    desk.write(MODEL.format(group=group, most=5).replace("size < 3", "size < 2"))
    planned = await desk.plan()
    (note,) = planned.section("CustomResourceDefinitions")["notes"]
    assert note["action"] == "change"
    assert "spec.size: maximum becomes 5" in note["reason"]
    fields = {one["field"].rpartition(".")[2]: (one["old"], one["new"]) for one in note["fields"]}
    assert fields == {"maximum": (9, 5)}
    (note,) = planned.section("Rules")["notes"]
    (change,) = note["fields"]
    assert change["field"] == "spec.validations[0].expression"
    assert planned.code == 0
