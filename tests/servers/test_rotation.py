"""The rotation of shared certificates: what one replica does next."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from webop.servers.certificates.rotation import (
    MAKING,
    Leaf,
    Memory,
    Moment,
    Pace,
    Shared,
    Step,
    build_next,
    choose_step,
    get_renewal,
    list_advertised,
    list_names,
)

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PACE = Pace(poll=10, settle=15, overlap=600)
NAMES = frozenset({"svc.ns.svc"})
LIFETIME = dt.timedelta(days=90)


def make(number: int, days: float = 90, authority: bool = True) -> Leaf:
    return Leaf(
        cert=b"leaf%d" % number,
        key=b"key%d" % number,
        authority=b"ca%d" % number if authority else None,
        expiry=START + dt.timedelta(days=days),
        names=NAMES,
    )


LEAF1, LEAF2, LEAF3, EXPIRED = make(1), make(2), make(3), make(0, days=-1)
STABLE = Shared("u1", LEAF1, None, (b"ca1",), START + dt.timedelta(days=60))
PREPARED = replace(STABLE, upcoming=LEAF2, authorities=(b"ca2", b"ca1"))
PROMOTED = replace(STABLE, leaf=LEAF2, authorities=(b"ca2", b"ca1"))
RETIRED = replace(STABLE, leaf=LEAF2, authorities=(b"ca2",))
FOREIGN = replace(STABLE, is_foreign=True, renew_at=None)


def at(ticks: float, days: float = 0) -> Moment:
    return Moment(START + dt.timedelta(days=days, seconds=ticks), ticks)


def remember(leaf: Leaf | None, authorities: tuple[bytes, ...] = (), **known: Any) -> Memory:
    """Build the memory of a replica that trusts its authorities for ever."""
    trusted = dict.fromkeys(authorities, -1e6)
    return Memory(leaf=leaf, authorities=authorities, trusted=trusted, **known)


def choose(
    shared: Shared | None,
    memory: Memory,
    *,
    since: float = 0,
    now: float = 0,
    days: float = 0,
    names: frozenset[str] = NAMES,
) -> Step:
    """Choose after this state of the Secret was seen first at one moment and again at another."""
    for ticks in (*range(int(since), int(now), 10), now):
        memory.observe(shared, at(ticks, days), PACE)
    return choose_step(shared, memory, at(now, days), PACE, names)


SERVING1 = (LEAF1, (b"ca1",))
ADVERTISING = (LEAF1, (b"ca2", b"ca1"))
SWITCHED = (LEAF2, (b"ca2", b"ca1"))


@pytest.mark.parametrize(
    ("shared", "served", "times", "expected"),
    [
        pytest.param(STABLE, (None, ()), {}, Step.LOAD, id="a newcomer loads what is there"),
        pytest.param(STABLE, (LEAF1, ()), {}, Step.ADVERTISE, id="and advertises it"),
        pytest.param(STABLE, SERVING1, {"now": 1e4}, Step.WAIT, id="nothing to do"),
        pytest.param(STABLE, SERVING1, {"days": 59.9}, Step.WAIT, id="not due yet"),
        pytest.param(STABLE, SERVING1, {"days": 60.1}, Step.PREPARE, id="due"),
        pytest.param(
            replace(STABLE, renew_at=None), SERVING1, {}, Step.PREPARE, id="no time of renewal"
        ),
        pytest.param(replace(STABLE, wish="x"), SERVING1, {}, Step.PREPARE, id="wished for"),
        pytest.param(
            replace(STABLE, wish="x", granted="x"), SERVING1, {}, Step.WAIT, id="wish granted"
        ),
        pytest.param(replace(STABLE, granted="x"), SERVING1, {}, Step.WAIT, id="wish withdrawn"),
        pytest.param(PREPARED, SERVING1, {}, Step.ADVERTISE, id="the bundle is advertised first"),
        pytest.param(PREPARED, ADVERTISING, {"now": 44}, Step.WAIT, id="others may not see it yet"),
        pytest.param(
            PREPARED, ADVERTISING, {"now": 45}, Step.PROMOTE, id="all others have seen it"
        ),
        pytest.param(
            PREPARED, ADVERTISING, {"days": 91}, Step.FOUND, id="all expired, the next one, too"
        ),
        pytest.param(
            replace(PREPARED, upcoming=make(2, days=180)),
            (LEAF1, (b"ca2", b"ca1")),
            {"days": 91},
            Step.PROMOTE,
            id="what is served has expired, no time to lose",
        ),
        pytest.param(
            replace(PREPARED, upcoming=EXPIRED, renew_at=START),
            ADVERTISING,
            {},
            Step.PREPARE,
            id="the rotation has stalled until the next one expired",
        ),
        pytest.param(PROMOTED, ADVERTISING, {}, Step.LOAD, id="promoted by another"),
        pytest.param(PROMOTED, SWITCHED, {"now": 599}, Step.WAIT, id="others may be behind"),
        pytest.param(PROMOTED, SWITCHED, {"now": 600}, Step.RETIRE, id="nobody is that far behind"),
        pytest.param(
            replace(PROMOTED, wish="x"), SWITCHED, {}, Step.PREPARE, id="wished for amid a rotation"
        ),
        pytest.param(RETIRED, SWITCHED, {"now": 600}, Step.ADVERTISE, id="retired by another"),
        pytest.param(
            RETIRED, (LEAF2, (b"ca2",)), {"now": 1e4}, Step.WAIT, id="the rotation is over"
        ),
        pytest.param(RETIRED, SERVING1, {}, Step.ADVERTISE, id="back after a long absence"),
        pytest.param(RETIRED, (LEAF1, (b"ca2",)), {}, Step.LOAD, id="then it loads without delay"),
    ],
)
def test_one_step_of_a_rotation(
    shared: Shared, served: tuple[Leaf | None, tuple[bytes, ...]], times: Any, expected: Step
) -> None:
    memory = remember(*served, uid="u1")
    assert choose(shared, memory, **times) is expected


@pytest.mark.parametrize(
    ("shared", "memory", "times", "expected"),
    [
        pytest.param(None, remember(None), {"now": 14}, Step.WAIT, id="others may restore it"),
        pytest.param(None, remember(None), {"now": 15}, Step.FOUND, id="there are no others"),
        pytest.param(None, remember(*SERVING1), {}, Step.RESTORE, id="deleted"),
        pytest.param(
            replace(STABLE, leaf=None), remember(*SERVING1), {}, Step.RESTORE, id="spoilt"
        ),
        pytest.param(
            replace(STABLE, leaf=None), remember(None), {}, Step.WAIT, id="spoilt, for a newcomer"
        ),
        pytest.param(
            replace(STABLE, leaf=EXPIRED), remember(None), {"now": 15}, Step.FOUND, id="expired"
        ),
        pytest.param(
            replace(STABLE, leaf=EXPIRED),
            remember(*SERVING1),
            {},
            Step.RESTORE,
            id="an old copy was put in place",
        ),
        pytest.param(
            None, remember(EXPIRED, (b"ca0",)), {}, Step.FOUND, id="gone, and nothing to keep"
        ),
        pytest.param(
            replace(STABLE, uid="u2", leaf=LEAF3, authorities=(b"ca3",)),
            remember(*SERVING1, uid="u1"),
            {},
            Step.JOIN,
            id="founded anew without this replica",
        ),
        pytest.param(
            replace(STABLE, uid="u2", leaf=LEAF3, authorities=(b"ca3", b"ca1")),
            remember(LEAF1, (b"ca3", b"ca1"), uid="u1"),
            {},
            Step.LOAD,
            id="founded anew, joined, trusted",
        ),
        pytest.param(
            None,
            remember(*SERVING1, was_foreign=True),
            {"now": 599},
            Step.WAIT,
            id="its maker may bring a foreign one again",
        ),
        pytest.param(
            None, remember(*SERVING1, was_foreign=True), {"now": 600}, Step.RESTORE, id="or not"
        ),
    ],
)
def test_a_secret_that_is_gone_or_spoilt(
    shared: Shared | None, memory: Memory, times: Any, expected: Step
) -> None:
    assert choose(shared, memory, **times) is expected


def test_what_was_seen_does_not_count_after_the_api_server_was_away() -> None:
    memory = remember(*ADVERTISING, uid="u1")
    memory.observe(PREPARED, at(0), PACE)
    memory.observe(PREPARED, at(46), PACE)
    assert choose_step(PREPARED, memory, at(46), PACE, NAMES) is Step.WAIT
    assert choose(PREPARED, memory, since=56, now=91) is Step.PROMOTE


@pytest.mark.parametrize(
    ("memory", "now", "expected"),
    [
        (Memory(LEAF1, (b"ca2", b"ca1"), "u1"), 1e4, Step.WAIT),
        (Memory(LEAF1, (b"ca2", b"ca1"), "u1", trusted={b"ca2": 100.0}), 114, Step.WAIT),
        (Memory(LEAF1, (b"ca2", b"ca1"), "u1", trusted={b"ca2": 100.0}), 115, Step.PROMOTE),
    ],
    ids=["not confirmed", "not settled", "settled"],
)
def test_nothing_is_promoted_before_it_is_trusted(
    memory: Memory, now: float, expected: Step
) -> None:
    assert choose(PREPARED, memory, now=now) is expected


@pytest.mark.parametrize(
    ("shared", "memory", "now", "expected"),
    [
        (replace(FOREIGN, leaf=None), remember(None), 1e4, Step.WAIT),
        (FOREIGN, remember(None), 0, Step.LOAD),
        (FOREIGN, remember(*SERVING1), 0, Step.WAIT),
        (FOREIGN, remember(EXPIRED, (b"ca1",)), 0, Step.LOAD),
        (replace(FOREIGN, wish="x"), remember(*SERVING1), 1e4, Step.WAIT),
        (replace(FOREIGN, leaf=EXPIRED), remember(EXPIRED, (b"ca1",)), 1e4, Step.WAIT),
        (FOREIGN, remember(LEAF2, (b"ca2",)), 0, Step.ADVERTISE),
        (FOREIGN, Memory(LEAF2, (b"ca1", b"ca2"), trusted={b"ca1": 90.0}), 100, Step.WAIT),
        (FOREIGN, Memory(LEAF2, (b"ca1", b"ca2"), trusted={b"ca1": 90.0}), 105, Step.LOAD),
        (FOREIGN, remember(LEAF1, (b"ca1", b"ca2")), 599, Step.WAIT),
        (FOREIGN, remember(LEAF1, (b"ca1", b"ca2")), 600, Step.ADVERTISE),
    ],
)
def test_a_foreign_secret_is_followed_and_never_written(
    shared: Shared, memory: Memory, now: float, expected: Step
) -> None:
    assert choose(shared, memory, now=now) is expected


def test_the_authorities_before_a_foreign_change_are_advertised_until_no_replica_needs_them() -> (
    None
):
    memory = remember(LEAF2, (b"ca2",))
    memory.observe(FOREIGN, at(0), PACE)
    assert list_advertised(FOREIGN, memory, at(0), PACE) == (b"ca1", b"ca2")
    memory.note_advertised((b"ca1", b"ca2"))
    memory.note_loaded(LEAF1, "u1")
    assert list_advertised(FOREIGN, memory, at(599), PACE) == (b"ca1", b"ca2")
    assert list_advertised(FOREIGN, memory, at(600), PACE) == (b"ca1",)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(NAMES, Step.WAIT), (frozenset({"other"}), Step.PREPARE), (frozenset(), Step.WAIT)],
)
def test_a_certificate_without_a_name_is_replaced(names: frozenset[str], expected: Step) -> None:
    assert choose(STABLE, remember(*SERVING1), names=names) is expected


def test_replicas_that_want_different_names_agree_on_both() -> None:
    assert list_names(None, NAMES) == NAMES
    assert list_names(STABLE, NAMES) == NAMES
    assert list_names(STABLE, frozenset({"a"})) == NAMES | {"a"}
    assert list_names(STABLE, frozenset()) == frozenset()


@pytest.mark.parametrize(
    ("step", "shared", "memory", "leaf", "upcoming", "authorities"),
    [
        (Step.FOUND, None, Memory(), LEAF3, None, (b"ca3",)),
        (Step.FOUND, None, remember(EXPIRED, (b"ca0",)), LEAF3, None, (b"ca3", b"ca0")),
        (Step.RESTORE, None, remember(*SERVING1), LEAF1, LEAF3, (b"ca3", b"ca1")),
        (
            Step.RESTORE,
            replace(PREPARED, leaf=None),
            remember(*SERVING1),
            LEAF1,
            LEAF3,
            (b"ca3", b"ca1", b"ca2"),
        ),
        (Step.PREPARE, PROMOTED, Memory(), LEAF2, LEAF3, (b"ca3", b"ca2", b"ca1")),
        (Step.PROMOTE, PREPARED, Memory(), LEAF2, None, (b"ca2", b"ca1")),
        (Step.JOIN, RETIRED, remember(*SERVING1), LEAF2, None, (b"ca2", b"ca1")),
        (Step.RETIRE, PROMOTED, Memory(), LEAF2, None, (b"ca2",)),
    ],
)
def test_what_is_written(
    step: Step,
    shared: Shared | None,
    memory: Memory,
    leaf: Leaf,
    upcoming: Leaf | None,
    authorities: tuple[bytes, ...],
) -> None:
    present = shared and replace(shared, wish="x", granted="w")
    renew_at = START + dt.timedelta(days=120)
    made = LEAF3 if step in MAKING else None
    written = build_next(step, present, memory, made, renew_at)
    assert (written.leaf, written.upcoming, written.authorities) == (leaf, upcoming, authorities)
    if step in MAKING:
        assert (written.renew_at, written.granted) == (renew_at, written.wish)
    else:
        assert (written.renew_at, written.granted) == (STABLE.renew_at, "w")


def test_a_secret_that_is_deleted_for_ever_does_not_outgrow_itself() -> None:
    memory = remember(*SERVING1)
    for number in range(2, 100):
        written = build_next(Step.RESTORE, None, memory, make(number), START)
        memory.note_advertised(written.authorities)
    assert len(written.authorities) <= 9
    assert {b"ca99", b"ca98", b"ca1"} <= set(written.authorities)


def test_a_certificate_is_renewed_after_two_thirds_of_its_life() -> None:
    expiry = START + dt.timedelta(days=90)
    assert get_renewal(expiry, LIFETIME) == START + dt.timedelta(days=60)
