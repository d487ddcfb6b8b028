"""What a Lease says, what is written into it, and for how long one may rely on it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from webop.aio.work_deadline import Fence
from webop.coordination.held_lease import ObservedLease
from webop.coordination.lease_content import build_times, claim, release, renew
from webop.errors import ConfigurationError
from webop.settings.groups import LeadershipSettings

Json = dict[str, Any]

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
TIME = "2026-01-02T03:04:05.678901Z"
LATER = NOW + dt.timedelta(seconds=2)


def build_options(**values: Any) -> LeadershipSettings:
    return webop.OperatorSettings().leadership.copy(**{"lease_name": "mine", **values})


def build_lease(holder: str | None = "other", version: int = 7, **spec: Any) -> Json:
    fields = {"holderIdentity": holder, "leaseDurationSeconds": 10, "acquireTime": TIME, **spec}
    return {"metadata": {"name": "mine", "resourceVersion": str(version)}, "spec": fields}


def test_the_defaults_are_those_of_kubernetes_with_a_margin_before_the_end() -> None:
    times = build_times(build_options())
    assert (times.duration, times.deadline, times.period) == (15, 10.0, 2.0)
    assert times.end == pytest.approx(14.25)
    assert times.cancellation == pytest.approx(13.25)
    assert times.request_timeout == 5.0


@rows(
    ("values", "text"),
    [
        ({"renew_deadline": 15}, "renew_deadline is 15 s and must be less than 14.25 s"),
        ({"renew_deadline": 20}, "Lower it, or raise lease_duration"),
        ({"lease_duration": 1, "renew_deadline": 0.9}, "less than 0.75 s"),
        ({"retry_period": 10}, "retry_period is 10 s and must be less than renew_deadline, 10 s"),
        ({"lease_name": ""}, "must have 1 to 253 characters"),
        ({"lease_name": "My_Lease"}, "'My_Lease'"),
        ({"lease_name": "a" * 254}, "letters, digits, dashes and dots"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_reason(values: Json, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text.replace(".", r"\.")):
        build_times(build_options(**values))


def test_a_new_lease_is_as_client_go_writes_it() -> None:
    assert claim("mine", None, "me", 15, NOW) == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "mine"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": TIME,
            "renewTime": TIME,
            "leaseTransitions": 0,
        },
    }


def test_taking_renewing_and_releasing_keep_what_others_have_put_into_the_lease() -> None:
    before = build_lease(leaseTransitions=4, strategy="OldestEmulationVersion")
    before["metadata"]["labels"] = {"a": "b"}
    taken = claim("mine", before, "me", 15, NOW)
    renewed = renew(taken, 15, LATER)
    released = release(renewed, LATER)
    for raw in (taken, renewed, released):
        assert raw["metadata"] == before["metadata"]
        assert raw["spec"]["strategy"] == "OldestEmulationVersion"
        assert raw["spec"]["leaseTransitions"] == 5
    assert renewed["spec"]["acquireTime"] == TIME
    assert renewed["spec"]["renewTime"] == "2026-01-02T03:04:07.678901Z"
    assert released["spec"]["holderIdentity"] == ""
    assert released["spec"]["leaseDurationSeconds"] == 1
    assert before["spec"]["holderIdentity"] == "other"


def observe(*states: tuple[float, Json | None]) -> ObservedLease:
    """Return a Lease as it was observed at some moments."""
    moments = [0.0]
    access: Any = None  # nothing is sent
    times = build_times(LeadershipSettings(lease_name="mine"))
    lease = ObservedLease(access, times, "me", Fence(lambda: moments[-1]))
    for moment, raw in states:
        moments.append(moment)
        lease.observe(raw)
    return lease


def test_a_lease_is_free_so_long_after_it_was_last_seen_to_change() -> None:
    seen = 100, build_lease(renewTime="1")
    assert observe(seen).free_at == 110
    # Nothing has changed, or nothing that counts: not even if the clocks of others say so.
    assert observe(seen, (105, build_lease(renewTime="1", version=8))).free_at == 110
    assert observe(seen, (105, build_lease(renewTime="2"))).free_at == 115
    assert observe(seen, (105, build_lease("third"))).free_at == 115
    assert observe(seen, (105, build_lease(leaseDurationSeconds=60))).free_at == 165
    assert observe(seen, (105, build_lease(leaseDurationSeconds=None))).free_at == 120


def test_a_lease_that_vanishes_is_held_as_long_as_if_it_was_there() -> None:
    seen = observe((100, build_lease()), (103, None))
    assert seen.raw is None
    assert seen.free_at == 110
    assert observe((100, build_lease("")), (101, None)).free_at < 0


class SlowAccess:
    """Answers to writes are on their way for 0.9 s."""

    name, is_watched = "mine", True

    def __init__(self) -> None:
        self.now = 100.0

    async def write(self, raw: Json) -> Json:
        self.now += 0.9
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self.now)}}


async def test_the_right_to_act_counts_from_the_request_of_a_claim_or_renewal() -> None:
    """The other one counts from there as well, however late the answer is."""
    slow = SlowAccess()
    access: Any = slow
    fence, times = Fence(lambda: slow.now), build_times(build_options())
    lease = ObservedLease(access, times, "me", fence)
    for _ in ("a claim", "a renewal"):
        sent = slow.now
        assert await lease.hold()
        assert fence.ends_at == sent + times.end
