"""Tests of the webhooks in this process, without a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from webop.testing import AdmissionClient

Grant = Callable[..., dict[str, Any]]


@pytest.fixture
async def admission(
    webop_admission: Callable[..., AdmissionClient],
) -> AsyncIterator[AdmissionClient]:
    async with webop_admission(modules=["grants.py"]) as client:
        yield client


async def test_a_grant_is_completed(admission: AdmissionClient, build_grant: Grant) -> None:
    result = await admission.create(build_grant(grantedBy="nobody"), user="joe")
    assert result.webhooks == ("complete", "check")
    assert result.object is not None
    assert result.object["spec"] == {
        "user": "jane",
        "role": "view",
        "duration": "1h",
        "grantedBy": "joe",
    }


async def test_users_cannot_grant_access_to_themselves(
    admission: AdmissionClient, build_grant: Grant
) -> None:
    result = await admission.create(build_grant(user="joe"), user="joe")
    assert (result.allowed, result.code) == (False, 403)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"duration": "9h"}, "spec.duration: '9h' is too long; 8h at most."),
        (
            {"duration": "for ever"},
            "spec.duration: 'for ever' is not a duration, such as 30s, 15m or 8h.",
        ),
    ],
)
async def test_a_denial_says_what_is_wrong(
    admission: AdmissionClient, build_grant: Grant, spec: dict[str, str], reason: str
) -> None:
    result = await admission.create(build_grant(**spec))
    assert (result.code, result.message) == (422, reason)


async def test_a_grant_to_edit_without_a_reason_draws_a_warning(
    admission: AdmissionClient, build_grant: Grant
) -> None:
    result = await admission.create(build_grant(role="edit"))
    assert result.raise_for_denial().warnings
    result = await admission.create(build_grant(role="edit", reason="the queue is stuck"))
    assert not result.raise_for_denial().warnings


async def test_only_other_users_can_prolong_a_grant(
    admission: AdmissionClient, build_grant: Grant
) -> None:
    old, new = (build_grant(duration=text, grantedBy="joe") for text in ("1h", "2h"))
    assert (await admission.update(old, new, user="jim")).allowed
    assert (await admission.update(old, new, user="jane")).code == 403


async def test_an_update_keeps_the_fields_that_the_webhook_filled_in(
    admission: AdmissionClient, build_grant: Grant
) -> None:
    old = build_grant(duration="2h", grantedBy="joe")
    result = await admission.update(old, build_grant(), user="jim")
    assert result.raise_for_denial().object == old


async def test_the_user_of_a_grant_cannot_change(
    admission: AdmissionClient, build_grant: Grant
) -> None:
    old, new = build_grant(duration="1h"), build_grant(duration="1h", user="jim")
    result = await admission.update(old, new, user="joe")
    assert result.message == "spec.user cannot be changed. Create a new grant."
