"""The Lease, the peering, and the objects that wait for the operator."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

import webop
from tests.kit.cli_runner import invoke
from tests.kit.doctor_runs import Doctor
from tests.kit.leases import LEASES
from tests.kit.managed_webhooks import Site
from tests.kit.peering_objects import PeeringObject, build_record, define_peerings
from tests.kit.rows import rows
from webop.cli.doctor.records import judge_lease, judge_peers
from webop.events.loggers import EVENTS
from webop.testing import LocalCluster

NOW = dt.datetime.now(dt.UTC)


def hold(holder: str, age: float = 0.0) -> dict[str, Any]:
    renewed = (NOW - dt.timedelta(seconds=age)).isoformat()
    return build_lease(holderIdentity=holder, leaseDurationSeconds=15, renewTime=renewed)


def build_lease(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


@rows(
    ("lease", "replicas", "level", "text"),
    [
        (hold("pod-1"), {"pod-1", "pod-2"}, "ok", "pod-1 holds it"),
        (hold("pod-1"), set(), "ok", "pod-1 holds it"),
        (hold("foreign"), {"pod-1"}, "warning", "the holder foreign has no record at the webhooks"),
        (hold("pod-1", age=300), {"pod-1"}, "failure", "has not renewed it for 5 min"),
        (hold(""), set(), "warning", "it has no holder"),
        ({}, set(), "warning", "it does not exist"),
        (
            build_lease(holderIdentity="odd", renewTime="nonsense"),
            set(),
            "failure",
            "has never renewed it",
        ),
    ],
)
def test_a_lease_is_judged_by_its_holder_and_its_age(
    lease: dict[str, Any], replicas: set[str], level: str, text: str
) -> None:
    finding = judge_lease("Lease", lease, NOW, replicas)
    assert finding.level == level
    assert text in finding.text


def build_peer(priority: int, age: float = 0.0, **more: Any) -> dict[str, Any]:
    lastseen = (NOW - dt.timedelta(seconds=age)).isoformat()
    return {"priority": priority, "lifetime": 60, "lastseen": lastseen, **more}


@rows(
    ("status", "levels", "text"),
    [
        ({}, ["ok"], "no peer pauses"),
        ({"own": build_peer(0)}, ["ok"], "no peer pauses"),
        ({"own": build_peer(0), "low": build_peer(-5)}, ["ok"], "no peer pauses"),
        ({"boss": build_peer(100, message="a backup")}, ["warning"], "paused by boss"),
        ({"boss": build_peer(100, age=99)}, ["ok"], "no peer pauses"),
        ({"one": build_peer(0), "two": build_peer(0)}, ["warning"], "pause each other"),
        ({"one": build_peer(0), "two": build_peer(0, age=99)}, ["ok"], "no peer pauses"),
        ({"odd": 5}, ["note", "ok"], "ignored the record of odd"),
    ],
)
def test_a_peering_is_judged_by_the_priorities_of_those_who_are_alive(
    status: dict[str, Any], levels: list[str], text: str
) -> None:
    found = list(judge_peers("peering", {"status": status}, 0, NOW, "webop resume"))
    assert [finding.level for finding in found] == levels
    assert text in found[0].text


def test_an_identity_of_strangers_is_quoted_in_the_command_to_be_copied() -> None:
    status = {"x; rm -rf ~": build_peer(100)}
    found = list(judge_peers("peering", {"status": status}, 0, NOW, "resume"))
    assert found[0].remedy.endswith("resume --id 'x; rm -rf ~'")


async def test_leases_and_peerings_that_keep_an_operator_from_acting_are_named(
    site: Site, doctor: Doctor
) -> None:
    await define_peerings(site.client)
    place = site.objects.namespace
    path = doctor.workshop.write(f"import webop\n@webop.on.create{site.names}\ndef fn(**_): ...\n")
    options = ("-n", place, "--peering", place, "--lease", place, "--no-probe", path)
    home = {"WEBOP_LEADERSHIP__LEASE_NAMESPACE": place}
    absent = await doctor.examine(*options, **home)
    assert absent.code == 1
    assert absent.find(f"Lease {place}/{place}").level == "warning"
    line = absent.find(f"peering {place}")
    assert (line.level, "kubectl create -f" in line.remedy) == ("failure", True)
    shared = PeeringObject(site.client, place, place)
    await shared.create(boss=build_record(100))
    renewed = (NOW - dt.timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "gone", "leaseDurationSeconds": 15, "renewTime": renewed}
    await site.client.create(LEASES, place, {"metadata": {"name": place}, "spec": spec})
    paused = await doctor.examine(*options, **home)
    line = paused.find(f"Lease {place}/{place}")
    assert (line.level, line.text) == (
        "failure",
        "gone has not renewed it for 3 h: no replica leads",
    )
    line = paused.find(f"peering {place}")
    assert (line.level, line.text.startswith("paused by boss")) == ("warning", True)
    assert line.remedy.endswith(f"webop resume -n {place} --peering {place} --id boss")


async def test_deletions_that_wait_for_a_handler_that_is_gone_are_named_with_what_releases_them(
    site: Site, doctor: Doctor, webop_cluster: LocalCluster
) -> None:
    finalizer = "tests.webop.dev/finalizer"
    variables = {"WEBOP_PERSISTENCE__FINALIZER": finalizer}
    await site.objects.create("held", finalizers=[finalizer])
    await site.objects.create("stays", finalizers=[finalizer])
    await site.objects.delete("held")
    place, group = site.objects.namespace, site.names[0]
    options = ("-n", place, "--standalone", "--no-probe")
    code = "import webop\n@webop.on.delete{}\ndef fn(**_): ...\n"
    path = doctor.workshop.write(code.format(("example.com", "v1", "others")))
    gone = await doctor.examine(*options, path, **variables)
    line = gone.find(f"patients.{group}")
    assert line.level == "warning"
    assert f"held by {finalizer}: {place}/held; these files have no handler" in line.text
    command = line.remedy.partition(": webop ")[2].split()
    env = {"KUBECONFIG": str(webop_cluster.kubeconfig)}
    released = await asyncio.to_thread(invoke, *command, "--dry-run", env=env)
    assert f"patients.{group} {place}/held: released (dry run)" in released.output
    # Handlers need some time, and may come back.
    path = doctor.workshop.write(code.format(site.names))
    busy = await doctor.examine(*options, path, **variables)
    text = f"no deletion has waited for {finalizer} for more than a minute"
    assert busy.find("finalizers").text == text
    for name in ("held", "stays"):
        await site.objects.patch(name, {"metadata": {"finalizers": None}})


_FAILING = """
import webop

@webop.reconcile{}
def build(**_):
    raise webop.PermanentError("there is no such engine")
"""


async def test_objects_whose_reconciler_has_given_up_are_named(site: Site, doctor: Doctor) -> None:
    name = f"patients.{site.names[0]}"
    options = ("-n", site.objects.namespace, "--standalone", "--no-probe")
    made = await site.objects.create("given-up")
    about = webop.build_object_reference(made)
    event = {
        "metadata": {"name": "one", "namespace": site.objects.namespace},
        "involvedObject": about,
        "reason": "HandlerFailed",
        "message": "Reconciler 'build' failed for good: there is no such engine",
    }
    await site.objects.client.create(EVENTS, site.objects.namespace, event)
    code = doctor.workshop.write(_FAILING.format(site.names))
    line = (await doctor.examine(*options, code)).find(name, "Objects that wait")
    assert line.level == "warning"
    assert f"{site.objects.namespace}/given-up (Reconciler 'build' failed for good" in line.text


_SELECTING = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.watching.label_selectors["{plural}"] = "tier=gold"
    settings.watching.field_selectors["{fields}"] = "{selector}"

@webop.on.create("{plural}", labels={{"tier": "{tier}"}})
def fn(**_): ...
"""


@pytest.mark.feature("FLT-28")
async def test_selectors_are_checked_by_the_api_server_and_against_filters(
    site: Site, doctor: Doctor
) -> None:
    name = f"patients.{site.names[0]}"
    options = ("-n", site.objects.namespace, "--standalone", "--no-probe")

    async def examine(fields: str, selector: str, tier: str) -> Any:
        code = _SELECTING.format(plural=name, fields=fields, selector=selector, tier=tier)
        return await doctor.examine(*options, doctor.workshop.write(code))

    fine = await examine(name, "metadata.name!=x", "gold")
    assert fine.find(name, "Selectors").text == (
        "webop sees only labelSelector=tier=gold and fieldSelector=metadata.name!=x"
    )
    refused = await examine(name, "spec.size=1", "gold")
    line = refused.find(name, "Selectors")
    assert line.level == "failure"
    assert "field label not supported: spec.size" in line.text
    lost = await examine("nothing.example.com", "metadata.name=x", "silver")
    assert "contradicts 'tier=gold'" in lost.find(name, "Selectors").text
    assert "has a key for which there are no handlers" in lost.find("nothing.example.com").text
