"""Managed webhooks on a real API server: what is configured, and what comes of requests."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import urlsplit

import pytest

import webop
from tests.kit.managed_webhooks import Site
from tests.kit.operators import Calls, Kind
from tests.kit.waiting import eventually
from webop.handlers.model import WebhookType

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING


@pytest.mark.feature(
    "ADM-40", "ADM-41", "ADM-42", "ADM-44", "ADM-45", "ADM-46", "ADM-19", "D-18", "D-16"
)
@pytest.mark.feature("CFG-24", "CFG-25")
async def test_handlers_and_their_options_are_in_the_configurations(site: Site) -> None:
    def fn(**_: Any) -> None: ...

    webop.on.validate(*site.names, id="check_it")(fn)
    webop.on.validate(
        *site.names,
        id="check/status",
        operations=["CREATE", "UPDATE"],
        subresource="*",
        side_effects=True,
        ignore_failures=True,
        labels={"a": "x", "b": webop.PRESENT, "c": webop.ABSENT, "d": lambda value, **_: True},
    )(fn)
    webop.on.mutate(*site.names, id="fill", operation="CREATE")(fn)
    webop.on.validate("nothings.example.com", id="none")(fn)
    async with site.run():
        await site.wait_for_names("check-it check.status", "fill")
        validating = await site.get_webhooks(VALIDATING)
        mutating = await site.get_webhooks(MUTATING)
        assert validating
        assert mutating
        first, second = validating
        assert urlsplit(first["clientConfig"]["url"]).path == "/check_it"
        assert first["clientConfig"]["caBundle"]
        assert second["failurePolicy"] == "Ignore"
        assert second["sideEffects"] == "NoneOnDryRun"
        assert second["rules"][0]["resources"] == ["parcels", "parcels/*"]
        assert second["rules"][0]["operations"] == ["CREATE", "UPDATE"]
        keys = [each["key"] for each in second["objectSelector"]["matchExpressions"]]
        assert keys == ["a", "b", "c"]
        assert urlsplit(second["clientConfig"]["url"]).path == "/check/status"
        assert mutating[0]["rules"][0]["operations"] == ["CREATE"]
    await site.wait_for_names()


@pytest.mark.feature("ADM-01", "ADM-02", "ADM-03", "ADM-07", "ADM-09", "ADM-10", "ADM-22", "ADM-24")
async def test_the_api_server_goes_by_the_verdicts(site: Site, calls: Calls) -> None:
    @webop.on.mutate(*site.names, id="fill_in")
    def fill(spec: webop.Spec, patch: webop.Patch, **_: Any) -> None:
        if "numbers" not in spec:
            patch.spec["numbers"] = [1, 2, 3]
        patch.spec["obsolete"] = None
        patch.meta.annotations["webop.dev/filled"] = "yes"

    @webop.on.validate(*site.names, id="check")
    async def check(warnings: list[str], operation: str, **kwargs: Any) -> None:
        calls.note("check", kwargs, dryrun=kwargs["dryrun"], user=kwargs["userinfo"]["username"])
        warnings.append(f"Checked the {operation} of Ä.")
        if kwargs["spec"].get("bad"):
            raise webop.AdmissionError("Meh! I don't like it.", code=422)

    async with site.run():
        await site.wait_for_names("check", "fill-in")
        answer = await site.create("good", {"obsolete": 1})
        assert answer.json()["spec"] == {"numbers": [1, 2, 3]}
        assert answer.json()["metadata"]["annotations"] == {"webop.dev/filled": "yes"}
        assert answer.headers.get_list("warning") == ['299 - "Checked the CREATE of Ä."']
        (call,) = calls.of("good")
        assert (call["spec"], call["dryrun"]) == ({"numbers": [1, 2, 3]}, False)
        assert call["user"]

        refusal = await site.create("bad", {"bad": True})
        assert refusal.status_code == 422
        assert refusal.json()["message"] == (
            f'admission webhook "check.{site.name}" denied the request: Meh! I don\'t like it.'
        )
        assert not await site.objects.exists("bad")

        dry = await site.create("dry", {}, "?dryRun=All")
        assert dry.json()["spec"] == {"numbers": [1, 2, 3]}
        assert calls.of("dry")[0]["dryrun"] is True
        assert not await site.objects.exists("dry")

        with pytest.raises(webop.APIStatusError, match="Meh!"):
            await site.objects.patch("good", {"spec": {"bad": True}})
        await site.objects.remove("good")
        assert calls.of("good")[-1]["spec"] == {"numbers": [1, 2, 3]}
    numbers = itertools.count()

    await eventually(
        lambda: site.create(f"bad{next(numbers)}", {"bad": True}),
        "the end of the webhooks",
        check=lambda it: it.status_code == 201,
    )


@pytest.mark.feature("ADM-42")
async def test_a_resource_that_appears_later_gets_its_webhooks(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    late = Kind(site.names[0], plural="laters", kind="Later")
    webop.on.validate(*site.names, id="now")(lambda **_: None)
    webop.on.validate(site.names[0], "laters", id="late")(lambda **_: None)
    async with site.run():
        await site.wait_for_names("now")
        await eventually(
            lambda: "Webhook 'late' is not in the webhook configurations" in caplog.text
        )
        await late.define(site.client)
        await site.wait_for_names("now late")
        await late.undefine(site.client)
        await site.wait_for_names("now")
