"""Candidates for one Lease, in virtual time, with all kinds of faults between them and it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterable

import pytest

from tests.kit.virtual_time import in_virtual_time
from tests.unit.coordination.candidates import NAME, Candidate, Ledger, standing, until
from webop.errors import LoginError


def build(count: int = 3, **times: float) -> tuple[Ledger, list[Candidate]]:
    ledger, rng = Ledger(), random.Random(1)
    return ledger, [Candidate(ledger, rng, f"replica-{n}", **times) for n in range(count)]


def find_leader(candidates: Iterable[Candidate]) -> Candidate:
    (leader,) = [candidate for candidate in candidates if candidate.is_acting]
    return leader


@in_virtual_time
async def test_one_of_several_candidates_leads_and_the_others_say_who_it_is() -> None:
    ledger, candidates = build()
    async with standing(*candidates):
        await until(lambda: any(c.is_acting for c in candidates))
        await asyncio.sleep(30)
        leader = find_leader(candidates)
        assert ledger.holder == leader.context.identity
        for candidate in candidates:
            text = candidate.elector.describe()
            if candidate is leader:
                assert candidate.elector.is_leading
                assert text == f"leading by the lease default/{NAME}"
            else:
                assert not candidate.elector.is_leading
                assert candidate.context.pausing.pause_reasons
                assert repr(leader.context.identity) in text
        assert ledger.raw is not None
        assert ledger.raw["spec"]["leaseTransitions"] == 0


@in_virtual_time
async def test_a_leader_that_stops_gives_the_lease_back_and_another_one_leads_at_once() -> None:
    ledger, candidates = build()
    async with standing(*candidates):
        await until(lambda: any(c.is_acting for c in candidates))
        leader = find_leader(candidates)
        others = [c for c in candidates if c is not leader]
        await leader.stop()
        took = await until(lambda: any(c.steps for c in others))
        assert took < 0.1
        assert max(leader.steps) < min(find_leader(others).steps)
        assert ledger.raw is not None
        assert ledger.raw["spec"]["leaseTransitions"] == 1
    assert ledger.holder == ""
    assert ledger.raw["spec"]["leaseDurationSeconds"] == 1


@in_virtual_time
async def test_without_a_watch_a_free_lease_is_found_by_polling() -> None:
    _, candidates = build()
    for candidate in candidates:
        candidate.access._has_watch = False
    async with standing(*candidates):
        await until(lambda: any(c.is_acting for c in candidates))
        leader = find_leader(candidates)
        await leader.stop()
        took = await until(lambda: any(c.is_acting for c in candidates))
        assert took < 1.3 * candidates[0].times.period


@in_virtual_time
async def test_a_leader_that_is_cut_off_stands_down_and_another_one_leads_after_the_lease() -> None:
    _, candidates = build()
    async with standing(*candidates):
        await until(lambda: any(c.is_acting for c in candidates))
        await asyncio.sleep(5)
        leader = find_leader(candidates)
        others = [c for c in candidates if c is not leader]
        leader.access.is_cut = True
        took = await until(lambda: any(c.steps for c in others))
        assert leader.times.end - leader.times.period < took < 3.2
        assert max(leader.steps) < min(find_leader(others).steps)
        leader.access.is_cut = False
        await asyncio.sleep(30)
        assert find_leader(candidates) in others
        await find_leader(candidates).stop()
        await until(lambda: any(c.is_acting for c in candidates))


@in_virtual_time
async def test_a_leader_that_comes_back_in_time_leads_on() -> None:
    ledger, candidates = build()
    async with standing(*candidates):
        await until(lambda: any(c.is_acting for c in candidates))
        leader = find_leader(candidates)
        await until(lambda: leader.elector._observed is not None)
        for pause in (0.5, 1.0, 1.2):
            leader.access.is_cut = True
            await asyncio.sleep(pause)
            leader.access.is_cut = False
            await asyncio.sleep(5)
            assert find_leader(candidates) is leader
        assert ledger.raw is not None
        assert ledger.raw["spec"]["leaseTransitions"] == 0
        gaps = [b - a for a, b in itertools.pairwise(leader.steps)]
        assert max(gaps) < 0.2


@in_virtual_time
async def test_a_leader_that_comes_back_between_deadline_and_end_begins_a_new_turn() -> None:
    ledger, (leader,) = build(1, lease_duration=10, renew_deadline=2)
    async with standing(leader):
        await until(lambda: leader.is_acting)
        leader.access.is_cut = True
        await until(lambda: not leader.elector.is_leading)
        await asyncio.sleep(1)
        turns = leader.turns
        leader.access.is_cut = False
        assert await until(lambda: leader.is_acting) < 2
        assert leader.turns == turns + 1
        assert ledger.raw is not None
        assert ledger.raw["spec"]["leaseTransitions"] == 0


@in_virtual_time
async def test_a_lease_of_somebody_else_is_respected_and_told_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    ledger, (candidate,) = build(1)
    foreign = {
        "holderIdentity": "go-controller_1",
        "leaseDurationSeconds": 7,
        "acquireTime": "2026-01-02T03:04:05.000000Z",
        "renewTime": "2026-01-02T03:04:05.000000Z",
    }
    ledger.write({"metadata": {"name": NAME}, "spec": foreign})
    async with standing(candidate):
        assert 6.9 < await until(lambda: candidate.is_acting) < 8
        told = [r.getMessage() for r in caplog.records if "Standing by" in r.getMessage()]
        since = "2026-01-02T03:04:05.000000Z"
        by = f"'go-controller_1' since {since}"
        assert told == [f"Standing by: the lease default/{NAME} is held by {by}."]


@in_virtual_time
async def test_a_lease_that_is_taken_away_is_lost_at_once() -> None:
    ledger, (leader,) = build(1)
    async with standing(leader):
        await until(lambda: leader.is_acting)
        assert ledger.raw is not None
        thief = {**ledger.raw, "spec": {**ledger.raw["spec"], "holderIdentity": "thief"}}
        ledger.write(thief)
        assert await until(lambda: not leader.is_acting) < 0.05
        steps = len(leader.steps)
        assert await until(lambda: leader.is_acting) > 2.9
        assert len(leader.steps) <= steps + 1


@in_virtual_time
async def test_a_lease_that_is_deleted_is_made_anew_by_its_holder() -> None:
    ledger, candidates = build()
    async with standing(*candidates):
        await until(lambda: any(c.is_acting for c in candidates))
        leader = find_leader(candidates)
        ledger.delete()
        assert await until(lambda: ledger.raw is not None) < 0.05
        await asyncio.sleep(10)
        assert find_leader(candidates) is leader
        assert not any(c.steps for c in candidates if c is not leader)


@in_virtual_time
async def test_labels_put_on_the_lease_by_others_do_no_harm() -> None:
    ledger, (leader,) = build(1)
    async with standing(leader):
        await until(lambda: leader.is_acting)
        assert ledger.raw is not None
        metadata = {**ledger.raw["metadata"], "labels": {"a": "b"}}
        ledger.write({**ledger.raw, "metadata": metadata})
        await asyncio.sleep(5)
        assert leader.is_acting
        assert ledger.raw["metadata"]["labels"] == {"a": "b"}
    assert ledger.holder == ""


@in_virtual_time
async def test_a_missing_permission_is_an_error_once_a_minute_and_an_obstacle_until_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, (candidate,) = build(1)
    candidate.access.is_forbidden = True
    async with standing(candidate):
        await asyncio.sleep(130)
        told = [r for r in caplog.records if "cannot be acquired" in r.getMessage()]
        assert [record.levelname for record in told] == ["ERROR"] * 3
        assert "get, create and update" in told[0].getMessage()
        assert told[0].getMessage().endswith(candidate.elector.obstacle.removeprefix("the lease"))
        candidate.access.is_forbidden = False
        await until(lambda: candidate.is_acting)
        assert candidate.elector.obstacle == ""


@in_virtual_time
async def test_without_credentials_it_does_not_act_and_says_why() -> None:
    _, (leader,) = build(1)
    async with standing(leader):
        await until(lambda: leader.is_acting)
        leader.access.failure = LoginError("no credentials")
        await until(lambda: not leader.may_act)
        assert "no credentials" in leader.elector.describe()
        leader.access.failure = None
        await until(lambda: leader.is_acting)


@in_virtual_time
async def test_work_that_does_not_end_is_cancelled_before_the_lease_is_given_back() -> None:
    ledger, candidates = build(2)
    async with standing(*candidates):
        await until(lambda: any(c.is_acting for c in candidates))
        leader = find_leader(candidates)
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


@pytest.mark.parametrize("seed", range(6))
def test_never_do_two_act_at_once_whatever_happens(seed: int) -> None:
    """Ten trios for each seed, a minute each, in which all kinds of faults come and go."""

    @in_virtual_time
    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            trios = [
                group.create_task(play_trio(random.Random(seed * 1000 + number)))
                for number in range(10)
            ]
        assert sum(len(trio.result()) > 1 for trio in trios) > 5  # leaders do change

    play()


async def play_trio(rng: random.Random) -> set[str]:
    """Return who has acted."""
    ledger = Ledger()
    candidates = [Candidate(ledger, rng, f"replica-{n}") for n in range(3)]

    def check() -> None:
        acting = [c.context.identity for c in candidates if c.may_act]
        assert len(acting) <= 1, acting

    ledger.on_write = check
    started = asyncio.get_running_loop().time()
    async with standing(*candidates):
        while asyncio.get_running_loop().time() < started + 60:
            candidate = rng.choice(candidates)
            await disturb(ledger, candidate, rng)
            for _ in range(rng.randint(1, 20)):
                check()
                await asyncio.sleep(0.1)
        for candidate in candidates:
            calm(candidate)
        await until(lambda: any(c.is_acting for c in candidates), 20)
    check()
    return {candidate.context.identity for candidate in candidates if candidate.steps}


async def disturb(ledger: Ledger, candidate: Candidate, rng: random.Random) -> None:
    """Do something to a candidate, or undo it."""
    access = candidate.access
    match rng.randrange(8):
        case 0:
            access.is_cut = True
        case 1:
            access.is_forbidden = rng.random() < 0.5
        case 2:
            access.loss = rng.choice([0.1, 0.5, 0.9])
        case 3:
            access.delay = rng.choice([0.01, 0.4, 1.2])
        case 4:
            candidate.is_stubborn = rng.random() < 0.5
        case 5 if ledger.raw is not None:  # somebody labels it
            ledger.write(ledger.raw)
        case 6 if rng.random() < 0.3:
            await candidate.stop()
            candidate.start()
        case _:
            calm(candidate)


def calm(candidate: Candidate) -> None:
    """Undo all faults."""
    access = candidate.access
    access.is_cut = access.is_forbidden = candidate.is_stubborn = False
    access.loss, access.delay = 0.0, 0.0
