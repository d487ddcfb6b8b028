"""What ordinary users can put into objects, against webhooks at a real API server."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.managed_webhooks import Site
from tests.kit.operators import wait_for_events


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize("padding", [nest(260), [0] * 450_000])
async def test_no_padding_gets_a_bad_object_past_a_policy_of_ignore(
    site: Site, padding: Any
) -> None:
    @webop.on.validate(*site.names, id="x", failure_policy="Ignore")
    def check(spec: webop.Spec, **_: Any) -> None:
        if spec.get("bad"):
            raise webop.AdmissionError("Meh!")

    async with site.run():
        answer = await site.create("bad", {"bad": True, "padding": padding})
    assert answer.status_code >= 400
    assert 'admission webhook "x.' in answer.json()["message"]
    assert "denied the request: " in answer.json()["message"]
    assert not await site.objects.exists("bad")


@pytest.mark.parametrize("padding", [[0] * 210_000, nest(300)])
async def test_a_large_object_that_was_stored_before_can_be_deleted(
    site: Site, padding: Any
) -> None:
    @webop.on.validate(*site.names, id="x")
    def check(**_: Any) -> None:
        pass

    @webop.on.delete(*site.names)
    def clean_up(**_: Any) -> None:
        pass

    finalizer = webop.OperatorSettings().persistence.finalizer
    answer = await site.create("large", {"padding": padding}, finalizers=[finalizer])
    assert answer.status_code == 201
    async with site.run():
        await site.objects.remove("large")


@pytest.mark.feature("ADM-22", "KEV-01", "KEV-02")
async def test_a_dry_run_stores_no_events(site: Site) -> None:
    @webop.on.startup()
    def configure(settings: webop.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = True

    @webop.on.validate(*site.names, id="x", operation="UPDATE", side_effects=True)
    def check(body: webop.Body, dryrun: bool, **_: Any) -> None:
        reason = "Dry" if dryrun else "Real"
        webop.info(body, reason=reason, message="It is checked.")
        webop.event(body, type="Normal", reason=reason, message="It is checked again.")

    async with site.run():
        await site.objects.create("one")
        path = site.objects.resource.get_url(namespace=site.objects.namespace, name="one")
        headers = {"Content-Type": "application/merge-patch+json"}
        for query in ("?dryRun=All", ""):
            answer = await site.send("PATCH", f"{path}{query}", {"spec": {"a": 1}}, headers)
            assert answer.status_code == 200
        events = await wait_for_events(site.objects, "one", lambda found: len(found) >= 2)
    assert [event["reason"] for event in events] == ["Real", "Real"]
