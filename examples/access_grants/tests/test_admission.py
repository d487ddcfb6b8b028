"""The webhooks, as the API server would call them: in this process, with no cluster."""

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


async def test_nobody_lets_themselves_in(admission: AdmissionClient, build_grant: Grant) -> None:
    result = await admission.create(build_grant(user="joe"), user="joe")
    assert (result.allowed, result.code) == (False, 403)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"duration": "9h"}, "spec.duration: '9h' is too long; 8h at most."),
        ({"duration": "for ever"}, "spec.duration: 'for ever' is no duration; 30s, 15m, 8h are."),
    ],
)
async def test_what_is_wrong_is_told(
    admission: AdmissionClient, build_grant: Grant, spec: dict[str, str], reason: str
) -> None:
    result = await admission.create(build_grant(**spec))
    assert (result.code, result.message) == (422, reason)


async def test_whoever_edits_is_asked_why(admission: AdmissionClient, build_grant: Grant) -> None:
    result = await admission.create(build_grant(role="edit"))
    assert result.raise_for_denial().warnings
    result = await admission.create(build_grant(role="edit", reason="the queue is stuck"))
    assert not result.raise_for_denial().warnings


async def test_a_grant_can_be_prolonged_but_not_by_whom_it_is_for(
    admission: AdmissionClient, build_grant: Grant
) -> None:
    old, new = (build_grant(duration=text, grantedBy="joe") for text in ("1h", "2h"))
    assert (await admission.update(old, new, user="jim")).allowed
    assert (await admission.update(old, new, user="jane")).code == 403


async def test_what_is_filled_in_need_not_be_repeated(
    admission: AdmissionClient, build_grant: Grant
) -> None:
    old = build_grant(duration="2h", grantedBy="joe")
    result = await admission.update(old, build_grant(), user="jim")
    assert result.raise_for_denial().object == old


async def test_a_grant_cannot_be_handed_on(admission: AdmissionClient, build_grant: Grant) -> None:
    old, new = build_grant(duration="1h"), build_grant(duration="1h", user="jim")
    result = await admission.update(old, new, user="joe")
    assert result.message == "spec.user: it stays as it is; make a new grant."
