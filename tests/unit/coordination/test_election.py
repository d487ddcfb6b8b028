"""Candidates for one Lease, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from tests.kit.virtual_time import in_virtual_time
from tests.unit.coordination.candidates import Candidate, Ledger, standing, until


def build(count: int = 3) -> tuple[Ledger, list[Candidate]]:
    ledger = Ledger()
    return ledger, [Candidate(ledger, f"replica-{n}") for n in range(count)]


async def wait_for_leader(candidates: Iterable[Candidate]) -> Candidate:
    await until(lambda: any(candidate.is_acting for candidate in candidates))
    (leader,) = [candidate for candidate in candidates if candidate.is_acting]
    return leader


@in_virtual_time
async def test_without_a_watch_a_free_lease_is_found_by_polling() -> None:
    _, candidates = build()
    for candidate in candidates:
        candidate.access.is_watched = False
    async with standing(*candidates):
        leader = await wait_for_leader(candidates)
        await leader.stop()
        took = await until(lambda: any(c.is_acting for c in candidates))
        assert took < 1.3 * candidates[0].times.period


@in_virtual_time
async def test_a_claim_whose_response_was_lost_is_recognized_without_the_watch() -> None:
    ledger, (candidate,) = build(1)
    candidate.access.is_mute = True
    candidate.access.delay = candidate.access.patience
    async with standing(candidate):
        await until(lambda: ledger.holder != "")
        candidate.access.delay = 0.0
        assert await until(lambda: candidate.is_acting) < 3 * candidate.times.period


@pytest.mark.parametrize("pause", [5.0, 5.2, 5.4, 5.6, 5.8, 6.0, 6.2])
@in_virtual_time
async def test_the_right_to_act_counts_from_the_request_of_a_renewal(pause: float) -> None:
    """The other one counts from there as well, however late the answer is."""
    _, candidates = build(2)
    async with standing(*candidates):
        leader = await wait_for_leader(candidates)
        leader.access.delay = 0.9
        await asyncio.sleep(pause)
        leader.access.is_cut = True
        (other,) = [c for c in candidates if c is not leader]
        await until(lambda: other.may_act)
        assert not leader.may_act


@in_virtual_time
async def test_a_missing_permission_is_an_error_once_a_minute_and_an_obstacle_until_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, (candidate,) = build(1)
    candidate.access.is_forbidden = True
    async with standing(candidate):
        await asyncio.sleep(130)
        told = [r for r in caplog.records if "cannot be acquired" in r.getMessage()]
        assert {record.levelname for record in told} == {"ERROR"}
        assert len(told) in (3, 4)  # it depends on when in a minute it begins
        assert "get, create and update" in told[0].getMessage()
        assert told[0].getMessage().endswith(candidate.elector.obstacle.removeprefix("the lease"))
        candidate.access.is_forbidden = False
        await until(lambda: candidate.is_acting)
        assert candidate.elector.obstacle == ""


@in_virtual_time
async def test_work_that_does_not_end_is_cancelled_before_the_lease_is_given_back() -> None:
    ledger, candidates = build(2)
    async with standing(*candidates):
        leader = await wait_for_leader(candidates)
        leader.is_stubborn = True
        begun = leader.clock()
        await leader.stop()
        assert 4.9 < leader.clock() - begun < 5.5
        assert max(leader.steps) - begun > 4.8
        (other,) = [c for c in candidates if c is not leader]
        await until(lambda: bool(other.steps))
        assert ledger.holder == other.context.identity
        assert max(leader.steps) < min(other.steps)


@in_virtual_time
async def test_a_change_of_leadership_is_told() -> None:
    _, (leader,) = build(1)
    changes: list[bool] = []
    leader.elector.on_change = lambda: changes.append(leader.elector.is_leading)
    async with standing(leader):
        await until(lambda: changes == [True])
        await asyncio.sleep(5)
        assert changes == [True]
        leader.access.is_cut = True
        await until(lambda: changes == [True, False])
