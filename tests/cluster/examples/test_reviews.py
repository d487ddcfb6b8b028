"""The webhooks of the example, asked as API servers ask them, with no cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cli_runner import forgetting_modules
from tests.kit.reviews import Site, read_patch, serve
from tests.kit.rows import rows

_EXAMPLE = Path(__file__).parents[3] / "examples" / "ephemeral_volume_claims"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    modules = [str(_EXAMPLE / "handlers.py")]
    with forgetting_modules(_EXAMPLE):
        async with serve(modules=modules) as served:
            yield served


async def ask(site: Site, path: str, size: object, old_size: object = None) -> dict[str, Any]:
    """Post a review of a creation, or of an update if there is an older size."""
    review = json.loads((_EXAMPLE / "review.json").read_text())
    request = review["request"]
    request["object"]["spec"] = {} if size is None else {"size": size}
    if old_size is not None:
        request["operation"] = "UPDATE"
        request["oldObject"] = {**request["object"], "spec": {"size": old_size}}
    return await post(site, path, review)


async def post(site: Site, path: str, review: dict[str, Any]) -> dict[str, Any]:
    answer = await site.post(review, path)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()["response"]
    return response


@pytest.mark.feature("ADM-01", "ADM-08", "ADM-09")
@rows(
    ("size", "old_size", "patch"),
    [
        (None, None, [{"op": "add", "path": "/spec/size", "value": "1G"}]),
        (None, "5G", [{"op": "add", "path": "/spec/size", "value": "5G"}]),
        ("2G", None, []),
    ],
)
async def test_a_claim_gets_a_size(
    site: Site, size: object, old_size: object, patch: list[object]
) -> None:
    assert read_patch(await ask(site, "default-size", size, old_size)) == patch


@pytest.mark.feature("ADM-02", "ADM-03")
@rows(
    ("path", "size", "old_size", "reason"),
    [
        *(
            ("check-size", size, None, None)
            for size in ("1G", "500Mi", "1.5Ti", "1Pi", 1_000_000_000, "2e9", None)
        ),
        ("check-size", "plenty", None, "'plenty' is not a quantity, such as 500Mi, 1G or 1.5Ti."),
        ("check-size", "", None, "'' is not a quantity, such as 500Mi, 1G or 1.5Ti."),
        *(
            ("check-size", size, None, f"'{size}' is out of range: above 0, 1Pi at most.")
            for size in ("0", "-5G", "2Pi")
        ),
        ("refuse-shrinking", "2G", "1G", None),
        ("refuse-shrinking", "1G", "1G", None),
        ("refuse-shrinking", "1000M", "1G", None),
        ("refuse-shrinking", "1G", "1Gi", "volumes can only grow, not shrink from 1Gi to 1G."),
        ("refuse-shrinking", "500M", "2G", "volumes can only grow, not shrink from 2G to 500M."),
        # A wrong size from before does not stand in the way of other changes.
        ("refuse-shrinking", "1G", "wrong", None),
        ("refuse-shrinking", "plenty", "plenty", None),
        ("check-size", "plenty", "plenty", None),
    ],
)
async def test_sizes_are_admitted_or_refused_with_the_reason(
    site: Site, path: str, size: object, old_size: object, reason: str | None
) -> None:
    response = await ask(site, path, size, old_size)
    assert response["allowed"] is (reason is None)
    if reason is not None:
        assert response["status"] == {"message": f"spec.size: {reason}", "code": 422}


@pytest.mark.feature("ADM-07")
@rows(
    ("size", "warning"),
    [
        ("2Ti", "spec.size: '2Ti' is large. You pay for it until you delete it."),
        ("5", "spec.size: '5' is only 5 bytes."),
        ("500m", "spec.size: '500m' is only 0.5 bytes ('m' stands for thousandths; use 'M' for"),
        ("1Ti", ""),
    ],
)
async def test_doubtful_sizes_are_admitted_with_a_warning(
    site: Site, size: str, warning: str
) -> None:
    response = await ask(site, "check-size", size)
    assert response["allowed"]
    given = response.get("warnings", [])
    assert len(given) == bool(warning)
    assert all(text.startswith(warning) for text in given)


@rows(("file", "is_allowed"), [("review", True), ("doubtful", True), ("refused", False)])
async def test_the_reviews_of_the_example_go_to_all_handlers_at_once(
    site: Site, file: str, is_allowed: bool
) -> None:
    review = json.loads((_EXAMPLE / f"{file}.json").read_text())
    assert (await post(site, "", review))["allowed"] is is_allowed
