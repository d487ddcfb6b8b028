"""Who owns the shards, by the word of the Leases."""

from __future__ import annotations

import datetime as dt

import webop
from tests.kit.doctor_runs import Doctor
from tests.kit.leases import LEASES
from tests.kit.managed_webhooks import Site
from tests.kit.operators import Json, RunOperator, build_settings
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop.cli.doctor.shard_checks import Team, judge_sharers, judge_team
from webop.coordination.shard_map import ShardMap, Term

NOW = dt.datetime.now(dt.UTC)
ALL = frozenset(range(64))


def hold(who: str, slot: str, uid: str = "1", age: float = 0.0, **more: str) -> Json:
    spec = {
        "holderIdentity": who,
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-11-30T00:00:00.000000Z",
        "renewTime": (NOW - dt.timedelta(seconds=age)).isoformat(),
    }
    notes = {"shards-uid": uid, **more}
    annotations = {f"webop.dev/{key}": text for key, text in notes.items()}
    return {"metadata": {"name": slot, "annotations": annotations}, "spec": spec}


def share(**owners: frozenset[int]) -> Json:
    """Return the Lease with the owners, each of which is in the slot of its name."""
    terms = {
        Term(f"op-member-0{slot[1:]}", f"pod-{slot[1:]}", "2026-11-30T00:00:00.000000Z"): shards
        for slot, shards in owners.items()
    }
    return ShardMap("", terms).write({"metadata": {"name": "op-shards", "uid": "1"}}, "op")


ONE = hold("pod-0", "op-member-00")
TWO = hold("pod-1", "op-member-01")
GONE = hold("pod-1", "op-member-01", age=60)
FORMER = hold("pod-1", "op-member-01", uid="0")
TRYING = hold("pod-1", "op-member-01", canary="2")
FAILED = hold("pod-1", "op-member-01", canary="0")
LEADER = hold("boss", "op")
HALVES = share(s0=ALL - {1, 2, 3}, s1=frozenset({1, 2, 3}))


@rows(
    ("leases", "levels", "text"),
    [
        ([HALVES, ONE, TWO], ["ok"], "replicas own all shards: pod-0 (61), pod-1 (3)"),
        ([HALVES, ONE, GONE], ["failure"], "no replica that runs owns the shards 1-3"),
        ([share(s0=ALL), ONE, FORMER], ["warning", "ok"], "deleted one: pod-1"),
        ([HALVES, ONE, TWO, LEADER], ["failure", "ok"], "since boss leads (--lease)"),
        ([HALVES, ONE, TRYING], ["note", "ok"], "pod-1 tries its version on 3 shards"),
        ([share(s0=ALL), ONE, FAILED], ["warning", "ok"], "pod-1 has given up its shards"),
    ],
)
def test_replicas_with_shards_are_judged_by_their_leases(
    leases: list[Json], levels: list[str], text: str
) -> None:
    team = Team.build("op", {one["metadata"]["name"]: one for one in leases}, NOW)
    found = list(judge_team("shards", team))
    assert [finding.level for finding in found] == levels
    assert text in found[0].text
    assert all(finding.remedy for finding in found if finding.level in {"warning", "failure"})


@rows(
    ("leases", "levels", "text"),
    [
        ([HALVES, ONE, TWO], ["failure"], "with --shards own shards: pod-0 (61), pod-1 (3)"),
        ([HALVES, ONE, GONE], ["failure"], "with --shards own shards: pod-0 (61)"),
        ([HALVES, GONE], ["warning"], "do not run any more own shards: pod-0, pod-1"),
        ([HALVES, ONE, LEADER], [], ""),
    ],
)
def test_a_leader_waits_for_replicas_with_shards(
    leases: list[Json], levels: list[str], text: str
) -> None:
    team = Team.build("op", {one["metadata"]["name"]: one for one in leases}, NOW)
    found = list(judge_sharers("shards", team))
    assert [finding.level for finding in found] == levels
    assert all(text in finding.text and finding.remedy for finding in found)


async def test_shards_that_no_running_replica_owns_are_a_failure(
    site: Site, doctor: Doctor, run_operator: RunOperator
) -> None:
    place = site.objects.namespace
    subject = f"Lease {place}/op-shards"
    path = doctor.workshop.write(f"import webop\n@webop.on.create{site.names}\ndef fn(**_): ...\n")
    options = ("-n", place, "--standalone", "--shards", "op", "--no-probe", path)
    home = {"WEBOP_LEADERSHIP__LEASE_NAMESPACE": place}
    assert (await doctor.examine(*options, **home)).find(subject).level == "warning"
    webop.on.create(*site.names)(lambda **_: None)
    leadership = {"lease_name": "op", "lease_namespace": place, "sharded": True}
    async with run_operator(build_settings(leadership=leadership), identity="one") as running:

        async def is_fine() -> bool:
            line = (await doctor.examine(*options, **home)).find(subject)
            return (line.level, line.text) == ("ok", "replicas own all shards: one (64)")

        await eventually(is_fine, "an owner")
        lead = ["--lease" if option == "--shards" else option for option in options]
        waits = (await doctor.examine(*lead, **home)).of("failure")
        assert any("with --shards own shards: one (64)" in line.text for line in waits)
        assert all("Start the operator" not in line.remedy for line in waits)
        await running.stop()
    ended = await doctor.examine(*options, **home)
    line = ended.find(subject)
    assert (ended.code, line.level) == (1, "failure")
    assert "no replica that runs owns the shards 0-63" in line.text
    broken = {"metadata": {"annotations": {"webop.dev/shards": "broken"}}}
    await site.client.patch(LEASES, place, "op-shards", broken)
    unread = (await doctor.examine(*options, **home)).find(subject)
    assert (unread.level, "is invalid" in unread.text) == ("failure", True)


async def test_missing_rights_to_the_leases_of_shards_are_named(site: Site, doctor: Doctor) -> None:
    place = site.objects.namespace
    path = doctor.workshop.write(f"import webop\n@webop.on.create{site.names}\ndef fn(**_): ...\n")
    account = f"system:serviceaccount:{place}:nobody"
    options = ("-n", place, "--standalone", "--shards", "op", "--no-probe", "--as", account)
    report = await doctor.examine(*options, path)
    named, others = [line for line in report.of("failure") if line.subject == "leases"]
    assert named.text == f"not granted: get and update leases in {place}"
    names = "op, op-shards, op-member-00, op-member-01"
    assert f"resourceNames: [{names}]" in named.remedy
    assert others.text == f"not granted: list and watch and create leases in {place}"
