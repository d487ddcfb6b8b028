"""The rotation of shared certificates: what one replica does next."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from webop.servers.certificates.rotation import Rotation, Step
from webop.servers.certificates.secretdata import Leaf, Shared

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NAMES = frozenset({"svc.ns.svc"})
LIFETIME = dt.timedelta(days=90)


def make(number: int, days: float = 90) -> Leaf:
    return Leaf(
        cert=b"leaf%d" % number,
        key=b"key%d" % number,
        ca=b"ca%d" % number,
        expiry=START + dt.timedelta(days=days),
        names=NAMES,
    )


LEAF1, LEAF2, LEAF3, EXPIRED = make(1), make(2), make(3), make(0, days=-1)
RENEW_AT = START + dt.timedelta(days=60)
STABLE = Shared("u1", LEAF1, None, (b"ca1",), RENEW_AT)
PREPARED = replace(STABLE, upcoming=LEAF2, cas=(b"ca2", b"ca1"))
PROMOTED = replace(STABLE, leaf=LEAF2, cas=(b"ca2", b"ca1"))
RETIRED = replace(STABLE, leaf=LEAF2, cas=(b"ca2",))
FOREIGN = replace(STABLE, is_foreign=True, renew_at=None)


def remember(leaf: Leaf | None, cas: tuple[bytes, ...] = (), **known: Any) -> Rotation:
    """Build what a replica knows whose bundle has long been trusted."""
    values: dict[str, Any] = {
        "names": ("svc.ns.svc",),
        "lifetime": LIFETIME,
        "leaf": leaf,
        "cas": cas,
    }
    values |= {"poll": 10, "settle": 15, "overlap": 600, "trusted_since": -1e6}
    values["make"] = lambda names, lifetime: replace(LEAF3, names=frozenset(names))
    return Rotation(**(values | known))


def choose(
    shared: Shared | None, rotation: Rotation, *, since: float = 0, now: float = 0, days: float = 0
) -> Step:
    """Decide after this state of the Secret was seen first at one moment and again at another."""
    return decide(shared, rotation, since=since, now=now, days=days)[0]


def decide(
    shared: Shared | None, rotation: Rotation, *, since: float = 0, now: float = 0, days: float = 0
) -> tuple[Step, Shared]:
    for ticks in (*range(int(since), int(now), 10), now):
        time = START + dt.timedelta(days=days, seconds=ticks)
        rotation.observe(shared or Shared(), time, ticks)
    return rotation.decide()


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
        pytest.param(
            replace(STABLE, renew_at=START + dt.timedelta(days=100)),
            SERVING1,
            {},
            Step.PREPARE,
            id="the next one has got lost, whose time of renewal it was",
        ),
        pytest.param(PREPARED, SERVING1, {}, Step.ADVERTISE, id="the bundle is advertised first"),
        pytest.param(PREPARED, ADVERTISING, {"now": 44}, Step.WAIT, id="others may not see it yet"),
        pytest.param(
            PREPARED, ADVERTISING, {"now": 45}, Step.PROMOTE, id="all others have seen it"
        ),
        pytest.param(
            PREPARED, ADVERTISING, {"days": 91}, Step.CREATE, id="all expired, the next one, too"
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
            replace(PROMOTED, renew_at=None), SWITCHED, {}, Step.PREPARE, id="due amid a rotation"
        ),
        pytest.param(RETIRED, SWITCHED, {"now": 600}, Step.ADVERTISE, id="retired by another"),
        pytest.param(
            RETIRED, (LEAF2, (b"ca2",)), {"now": 1e4}, Step.WAIT, id="the rotation is over"
        ),
        pytest.param(RETIRED, SERVING1, {}, Step.ADVERTISE, id="back after a long absence"),
        pytest.param(RETIRED, ADVERTISING, {}, Step.LOAD, id="then it loads what is trusted"),
    ],
)
def test_one_step_of_a_rotation(
    shared: Shared, served: tuple[Leaf | None, tuple[bytes, ...]], times: Any, expected: Step
) -> None:
    rotation = remember(*served, uid="u1")
    assert choose(shared, rotation, **times) is expected


@pytest.mark.parametrize(
    ("shared", "rotation", "times", "expected"),
    [
        pytest.param(None, remember(None), {"now": 14}, Step.WAIT, id="others may restore it"),
        pytest.param(None, remember(None), {"now": 15}, Step.CREATE, id="there are no others"),
        pytest.param(None, remember(*SERVING1), {}, Step.RESTORE, id="deleted"),
        pytest.param(
            replace(STABLE, leaf=None), remember(*SERVING1), {}, Step.RESTORE, id="spoilt"
        ),
        pytest.param(
            replace(STABLE, leaf=None), remember(None), {}, Step.WAIT, id="spoilt, for a newcomer"
        ),
        pytest.param(
            replace(STABLE, leaf=EXPIRED), remember(None), {"now": 15}, Step.CREATE, id="expired"
        ),
        pytest.param(
            replace(STABLE, leaf=EXPIRED),
            remember(*SERVING1),
            {},
            Step.RESTORE,
            id="an old copy was put in place",
        ),
        pytest.param(
            None, remember(EXPIRED, (b"ca0",)), {}, Step.CREATE, id="gone, and nothing to keep"
        ),
        pytest.param(
            replace(STABLE, uid="u2", leaf=LEAF3, cas=(b"ca3",)),
            remember(*SERVING1, uid="u1"),
            {},
            Step.JOIN,
            id="created anew without this replica",
        ),
        pytest.param(
            replace(STABLE, uid="u2", leaf=LEAF3, cas=(b"ca3", b"ca1")),
            remember(LEAF1, (b"ca3", b"ca1"), uid="u1"),
            {},
            Step.LOAD,
            id="created anew, joined, trusted",
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
        pytest.param(
            None,
            remember(replace(LEAF1, ca=None), (b"root",), was_foreign=True),
            {"now": 600},
            Step.CREATE,
            id="or not, and nobody would take a chain of its maker's for one of ours",
        ),
    ],
)
def test_a_secret_that_is_gone_or_spoilt(
    shared: Shared | None, rotation: Rotation, times: Any, expected: Step
) -> None:
    assert choose(shared, rotation, **times) is expected


def test_what_was_seen_does_not_count_after_the_api_server_was_away() -> None:
    rotation = remember(*ADVERTISING, uid="u1")
    for ticks in (0, 46):
        rotation.observe(PREPARED, START, ticks)
    assert rotation.decide()[0] is Step.WAIT
    assert choose(PREPARED, rotation, since=56, now=91) is Step.PROMOTE


@pytest.mark.parametrize(
    ("trusted_since", "now", "expected"),
    [(None, 1e4, Step.WAIT), (100.0, 114, Step.WAIT), (100.0, 115, Step.PROMOTE)],
    ids=["not confirmed", "not settled", "settled"],
)
def test_nothing_is_promoted_before_it_is_trusted(
    trusted_since: float | None, now: float, expected: Step
) -> None:
    rotation = remember(*ADVERTISING, uid="u1", trusted_since=trusted_since)
    assert choose(PREPARED, rotation, now=now) is expected


def test_a_replica_that_has_missed_a_rotation_is_trusted_while_it_catches_up() -> None:
    rotation = remember(*SERVING1, uid="u1")
    assert choose(RETIRED, rotation) is Step.ADVERTISE
    assert list(rotation.cas) == [b"ca2", b"ca1"]
    assert choose(RETIRED, rotation, now=1e4) is Step.WAIT
    rotation.trusted_since = 1e4
    assert choose(RETIRED, rotation, since=1e4, now=1e4 + 15) is Step.LOAD
    assert rotation.decide()[0] is Step.ADVERTISE
    assert list(rotation.cas) == [b"ca2"]


def test_a_larger_bundle_is_to_be_trusted_anew_and_a_smaller_one_is_not() -> None:
    rotation = remember(*SERVING1, uid="u1")
    assert choose(PREPARED, rotation) is Step.ADVERTISE
    assert rotation.trusted_since is None
    rotation.trusted_since = 1.0
    assert choose(STABLE, rotation) is Step.ADVERTISE
    assert rotation.trusted_since == 1.0


def test_a_ca_that_joins_is_trusted_for_as_long_as_others_that_were_in_use() -> None:
    rotation = remember(*SWITCHED, uid="u1")
    assert choose(PROMOTED, rotation, now=590) is Step.WAIT
    joined = replace(PROMOTED, cas=(b"ca2", b"ca1", b"ca9"))
    assert choose(joined, rotation, since=595, now=601) is Step.ADVERTISE
    assert choose(joined, rotation, since=602, now=1190) is Step.WAIT
    assert choose(joined, rotation, since=1190, now=1200) is Step.RETIRE


@pytest.mark.parametrize(
    ("shared", "rotation", "now", "expected"),
    [
        (replace(FOREIGN, leaf=None), remember(None), 1e4, Step.WAIT),
        (FOREIGN, remember(None), 0, Step.LOAD),
        (FOREIGN, remember(*SERVING1), 0, Step.WAIT),
        (FOREIGN, remember(EXPIRED, (b"ca1",)), 0, Step.LOAD),
        (FOREIGN, remember(*SERVING1), 1e4, Step.WAIT),
        (replace(FOREIGN, leaf=EXPIRED), remember(EXPIRED, (b"ca1",)), 1e4, Step.WAIT),
        (FOREIGN, remember(LEAF2, (b"ca2",)), 0, Step.ADVERTISE),
        (FOREIGN, remember(LEAF2, (b"ca1", b"ca2"), trusted_since=90.0), 100, Step.WAIT),
        (FOREIGN, remember(LEAF2, (b"ca1", b"ca2"), trusted_since=90.0), 105, Step.LOAD),
        (FOREIGN, remember(LEAF1, (b"ca1", b"ca2")), 599, Step.WAIT),
        (FOREIGN, remember(LEAF1, (b"ca1", b"ca2")), 600, Step.ADVERTISE),
    ],
)
def test_a_foreign_secret_is_followed_and_never_written(
    shared: Shared, rotation: Rotation, now: float, expected: Step
) -> None:
    assert choose(shared, rotation, now=now) is expected


def test_the_cas_before_a_foreign_change_are_advertised_until_no_replica_needs_them() -> None:
    rotation = remember(LEAF2, (b"ca2",))
    assert choose(FOREIGN, rotation) is Step.ADVERTISE
    assert rotation.cas == (b"ca1", b"ca2")
    rotation.trusted_since = 0
    assert choose(FOREIGN, rotation, since=0, now=15) is Step.LOAD
    assert rotation.leaf == LEAF1
    assert choose(FOREIGN, rotation, since=20, now=599) is Step.WAIT
    assert choose(FOREIGN, rotation, now=600) is Step.ADVERTISE
    assert set(rotation.cas) == {b"ca1"}


@pytest.mark.parametrize(
    ("names", "expected", "made"),
    [
        (("svc.ns.svc",), Step.WAIT, None),
        ((), Step.WAIT, None),
        (("other",), Step.PREPARE, {"svc.ns.svc", "other"}),
    ],
)
def test_replicas_that_want_different_names_agree_on_both(
    names: tuple[str, ...], expected: Step, made: set[str] | None
) -> None:
    step, content = decide(STABLE, remember(*SERVING1, names=names))
    assert step is expected
    assert (content.upcoming.names if content.upcoming else None) == made


@pytest.mark.parametrize(
    ("step", "shared", "rotation", "now", "leaf", "upcoming", "cas"),
    [
        (Step.CREATE, None, remember(None), 15, LEAF3, None, (b"ca3",)),
        (Step.CREATE, None, remember(EXPIRED, (b"ca0",)), 0, LEAF3, None, (b"ca3", b"ca0")),
        (Step.RESTORE, None, remember(*SERVING1), 0, LEAF1, None, (b"ca1",)),
        (
            Step.RESTORE,
            replace(PREPARED, leaf=None),
            remember(*SERVING1),
            0,
            LEAF1,
            None,
            (b"ca1", b"ca2"),
        ),
        (Step.PREPARE, STABLE, remember(*SERVING1), 0, LEAF1, LEAF3, (b"ca3", b"ca1")),
        (Step.PROMOTE, PREPARED, remember(*ADVERTISING), 45, LEAF2, None, (b"ca2", b"ca1")),
        (
            Step.JOIN,
            replace(RETIRED, uid="u2"),
            remember(*SERVING1, uid="u1"),
            0,
            LEAF2,
            None,
            (b"ca2", b"ca1"),
        ),
        (Step.RETIRE, PROMOTED, remember(*SWITCHED), 600, LEAF2, None, (b"ca2",)),
    ],
)
def test_what_is_written(
    step: Step,
    shared: Shared | None,
    rotation: Rotation,
    now: float,
    leaf: Leaf,
    upcoming: Leaf | None,
    cas: tuple[bytes, ...],
) -> None:
    present = shared and replace(shared, renew_at=None if step is Step.PREPARE else RENEW_AT)
    found, written = decide(present, rotation, now=now)
    assert found is step
    assert (written.leaf, written.upcoming, written.cas) == (leaf, upcoming, cas)
    expected = {
        Step.RESTORE: None,
        Step.CREATE: START + dt.timedelta(days=60, seconds=now),
        Step.PREPARE: START + dt.timedelta(days=60),
    }
    assert written.renew_at == expected.get(step, RENEW_AT)


def test_a_certificate_that_was_restored_is_renewed_at_once() -> None:
    rotation = remember(*SERVING1)
    _, restored = decide(None, rotation)
    step, written = decide(restored, rotation)
    assert (step, written.leaf, written.upcoming) == (Step.PREPARE, LEAF1, LEAF3)


def test_a_secret_that_is_deleted_for_ever_does_not_outgrow_itself() -> None:
    numbers = iter(range(2, 1000))
    rotation = remember(*SERVING1, make=lambda names, lifetime: make(next(numbers)))
    for _ in range(50):
        _, restored = decide(None, rotation)
        step, prepared = decide(restored, rotation)
        assert step is Step.PREPARE
        assert choose(prepared, rotation) is Step.ADVERTISE
        assert len(rotation.cas) <= 9
    assert rotation.cas[:2] == (b"ca51", b"ca1")
    assert b"ca50" in rotation.cas
