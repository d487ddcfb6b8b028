"""Tests of CronJobs in virtual time, and on a real API server."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import AsyncIterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cronjob_models import CronJob, CronJobSpec, CronJobV2
from kubex.k8s.v1_36.batch.v1.job import Job
from schedules import find_runs

import webop
from webop.errors import APIError
from webop.testing import Clock, SimulatedCluster, check_round_trips, eventually, simulated

FOLDER = Path(__file__).parent
HERE: Any = {"namespace": "default"}
POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FIRST = START + dt.timedelta(minutes=30)
COUNT = int(os.environ.get("CRONJOBS", "2"))
in_virtual_time = partial(simulated, FOLDER / "cronjobs.py", given=[CronJob], now=START)


def build(
    name: str = "hello", namespace: str = "default", pod: Any = POD, **spec: Any
) -> dict[str, Any]:
    """Return a CronJob that runs each hour."""
    template = {"spec": {"template": {"spec": pod}}}
    spec = {"schedule": "30 * * * *", "jobTemplate": template, **spec}
    head = {"apiVersion": "batch.example.com/v1", "kind": "CronJob"}
    return {**head, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def get_time(job: Any) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(job.metadata.name.rpartition("-")[2]), dt.UTC)


def find_longest_delay(jobs: dict[str, Any]) -> float:
    """Return the seconds between the time of a run and its Job."""
    delays: list[dt.timedelta] = [
        job.metadata.creation_timestamp - get_time(job) for job in jobs.values()
    ]
    return max(delays).total_seconds()


def list_jobs(cluster: SimulatedCluster) -> dict[str, Any]:
    jobs: Any = cluster.list(Job, **HERE)
    return {job.metadata.uid: job for job in jobs}


def list_runs(cluster: SimulatedCluster, name: str = "hello") -> list[float]:
    """Return the times of the Jobs of a CronJob, in hours after the first one."""
    times = [
        get_time(job) for job in list_jobs(cluster).values() if job.metadata.name.startswith(name)
    ]
    return sorted((time - FIRST).total_seconds() / 3600 for time in times)


def get_reasons(cluster: SimulatedCluster, name: str = "hello") -> list[str]:
    cronjob: Any = cluster.get(CronJob, name, **HERE)
    return [it.reason for it in cronjob.status.conditions]


def finish_run(cluster: SimulatedCluster, name: str = "hello", *, succeeded: bool = True) -> None:
    cronjob: Any = cluster.get(CronJob, name, **HERE)
    cluster.finish(Job, cronjob.status.active[-1].name, succeeded=succeeded)


@in_virtual_time()
def test_each_job_of_90_days_starts_once_in_its_minute(cluster: SimulatedCluster) -> None:
    cluster.play("jobs", after=30)
    days = [START + dt.timedelta(days=day) for day in range(90)]
    minutes = [7 + number * 1440 // COUNT for number in range(COUNT)]
    for minute in minutes:
        schedule = f"{minute % 60} {minute // 60} * * *"
        cluster.create(build(f"daily-{minute}", schedule=schedule))
    jobs: dict[str, Any] = {}
    for _ in days:
        cluster.advance(days=1)
        jobs |= list_jobs(cluster)
    assert sorted(job.metadata.name for job in jobs.values()) == sorted(
        f"daily-{minute}-{day.timestamp() + 60 * minute:.0f}" for day in days for minute in minutes
    )
    assert find_longest_delay(jobs) < 1


KEEPING = build("keep", successfulJobsHistoryLimit=3)
FORGETTING = build("forget", successfulJobsHistoryLimit=0)


@in_virtual_time(given=[CronJob, KEEPING, FORGETTING], seeds=4)
def test_kills_and_failures_lose_no_run_and_repeat_none(cluster: SimulatedCluster) -> None:
    histories = {"keep": [2, 4, 5, 6], "forget": [2]}
    jobs: dict[str, Any] = {}
    for hour, succeeded in enumerate([False, True, False, True, True, True, True]):
        cluster.fail("PATCH", "jobs", status=500, times=hour + 1)
        cluster.fail("PATCH", "jobs", lost=True)
        cluster.advance(seconds=(FIRST - cluster.now).total_seconds() + 3600 * hour + 0.02)
        if hour % 3 == 1:
            cluster.kill()
            cluster.start()
        cluster.settle()
        jobs |= list_jobs(cluster)
        for name in histories:
            finish_run(cluster, name, succeeded=succeeded)
        cluster.settle()
    assert find_longest_delay(jobs) < 120
    for name, history in histories.items():
        times = [get_time(job) for job in jobs.values() if job.metadata.name.startswith(name)]
        assert sorted(times) == [FIRST + dt.timedelta(hours=hour) for hour in range(7)]
        assert list_runs(cluster, name) == history
        assert get_reasons(cluster, name) == ["JobsFailed", "NoJobsActive", "JobsFailed"]


@pytest.mark.parametrize(
    ("spec", "hours", "runs", "reasons"),
    [
        ({}, 0.4, [], ["AllJobsCompleted", "NoJobsActive", "AsExpected"]),
        ({}, 1, [0], ["JobsActive", "JobsActive", "AsExpected"]),
        ({}, 3, [2], ["JobsActive", "JobsActive", "AsExpected"]),
        ({}, 101.6, [], ["TooManyMissedRuns", "NoJobsActive", "TooManyMissedRuns"]),
        ({"startingDeadlineSeconds": 7200}, 101.6, [101], ["JobsActive"] * 2 + ["AsExpected"]),
        ({"startingDeadlineSeconds": 600}, 1, [], ["MissedSchedule", "NoJobsActive"] * 2),
        ({"suspend": True}, 3, [], ["Suspended", "NoJobsActive", "AsExpected"]),
    ],
)
@in_virtual_time()
def test_after_an_outage_the_last_run_that_is_due_starts(
    cluster: SimulatedCluster, spec: Any, hours: float, runs: list[float], reasons: list[str]
) -> None:
    cluster.create(build(**spec))
    cluster.kill()
    cluster.advance(hours=hours)
    cluster.start()
    cluster.settle()
    assert list_runs(cluster) == runs
    assert get_reasons(cluster) == reasons[:3]


@pytest.mark.parametrize(("policy", "runs"), [("Allow", [0, 1]), ("Forbid", [0]), ("Replace", [1])])
@in_virtual_time()
def test_a_run_while_another_one_is_active(
    cluster: SimulatedCluster, policy: str, runs: list[float]
) -> None:
    cluster.create(build(concurrencyPolicy=policy))
    cluster.advance(hours=2)
    assert list_runs(cluster) == runs
    finish_run(cluster)
    cluster.settle()
    assert list_runs(cluster) == ([0, 1] if policy == "Forbid" else runs)


@in_virtual_time(given=[CronJob, build(schedule="61 * * * *")])
def test_a_wrong_schedule_that_was_stored_is_reported(cluster: SimulatedCluster) -> None:
    cluster.settle()
    assert get_reasons(cluster)[2] == "InvalidSchedule"
    cluster.patch(CronJob, "hello", {"spec": {"schedule": "1 * * * *"}}, **HERE)
    cluster.settle()
    assert get_reasons(cluster)[2] == "AsExpected"


@in_virtual_time()
def test_a_job_that_the_api_server_refuses_is_reported(cluster: SimulatedCluster) -> None:
    cluster.create(build(pod={**POD, "restartPolicy": "Always"}))
    cluster.advance(hours=1)
    assert get_reasons(cluster)[2] == "JobNotStarted"


@in_virtual_time()
def test_wrong_cronjobs_are_denied(cluster: SimulatedCluster) -> None:
    for wrong, message in (
        ({"schedule": "61 * * * *"}, "spec.schedule: Bad minute"),
        ({"schedule": "@daily"}, "spec.schedule: must match"),
        ({"timeZone": "Mars"}, "spec.timeZone is unknown"),
        ({"name": "x" * 53}, "the name is too long"),
        ({"pod": {}}, "spec.jobTemplate.spec.template.spec.containers: "),
    ):
        with pytest.raises(APIError, match=message):
            cluster.create(build(**wrong))


@pytest.fixture
async def client(webop_cluster: Any, webop_operator: Any) -> AsyncIterator[webop.AsyncClient]:
    """A client of a real cluster, with the operator as the service account of the manifests."""
    webop_cluster.apply(FOLDER / "manifests")
    account = webop_cluster.kubeconfig_for("system:serviceaccount:cronjobs:cronjobs")
    async with webop.client.connect() as client:
        with webop_operator("-A", "cronjobs.py", env={"KUBECONFIG": str(account)}):
            yield client


async def test_a_job_starts_and_is_deleted_on_a_cluster(
    client: webop.AsyncClient, webop_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Any = {"namespace": webop_namespace}
    clock = Clock(dt.datetime.now(dt.UTC))
    monkeypatch.setattr(webop, "now", lambda: clock.now)  # of the operator, in another thread
    await client.create(build(**here, schedule="* * * * *", successfulJobsHistoryLimit=0))
    created = await client.wait_for(CronJob, "hello", "Available", **here)
    clock.advance(hours=1)
    due = clock.now.replace(second=0, microsecond=0)
    change = {"spec": {"jobTemplate": {"metadata": {"labels": {"app": "hello"}}}}}
    await client.patch(CronJob, "hello", change, **here)  # pauses have the clock of the machine
    job = await client.wait_for(Job, f"hello-{due.timestamp():.0f}", bool, **here)
    meta: Any = job.metadata
    assert meta.annotations["batch.example.com/scheduled-at"] == due.isoformat()
    assert meta.owner_references[0].uid == created.metadata.uid
    assert meta.labels["app"] == "hello"
    stamp = f"{START:%Y-%m-%dT%H:%M:%SZ}"
    done = [{"type": each, "status": "True"} for each in ("SuccessCriteriaMet", "Complete")]
    status = {"startTime": stamp, "completionTime": stamp, "conditions": done}
    await client.patch(Job, meta.name, {"status": status}, subresource="status", **here)
    await client.wait_gone(Job, meta.name, **here)


async def test_both_versions_show_the_same_cronjob(
    client: webop.AsyncClient, webop_namespace: str
) -> None:
    here: Any = {"namespace": webop_namespace}
    await client.create(build(**here, schedule="*/5 8 * * 1-5"))
    new = await client.wait_for(CronJobV2, "hello", "Available", **here)
    assert (new.spec.schedule.minute, new.spec.schedule.day_of_month) == ("*/5", "*")
    await client.patch(CronJobV2, "hello", {"spec": {"schedule": {"hour": "9"}}}, **here)
    assert (await client.get(CronJob, "hello", **here)).spec.schedule == "*/5 9 * * 1-5"


@pytest.mark.usefixtures("client")
def test_the_samples_get_defaults(webop_cluster: Any) -> None:
    find = partial(webop_cluster.apply, FOLDER / "cronjob.yaml", dry_run=True)
    defaults = {"suspend": False, "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}
    for found, policy in zip(eventually(find), ("Allow", "Forbid"), strict=True):
        assert found["spec"] == {**found["spec"], **defaults, "concurrencyPolicy": policy}


def test_conversions_lose_nothing() -> None:
    check_round_trips(CronJob, CronJobV2, examples=50)


@pytest.mark.parametrize(
    ("schedule", "after", "runs"),
    [
        ("30 2 * * *", "2026-03-28T12:00Z", ["29 01:00", "30 00:30"]),  # 2:30 does not exist
        ("30 2 * * *", "2026-10-24T12:00Z", ["25 00:30", "26 01:30"]),  # it comes twice
        ("30 2 * * *", "2026-10-25T01:00Z", ["26 01:30", "27 01:30"]),
        ("30 * * * *", "2026-10-25T00:00Z", ["25 00:30", "25 01:30"]),
    ],
)
def test_clocks_that_change_skip_no_run(schedule: str, after: str, runs: list[str]) -> None:
    spec = {"schedule": schedule, "timeZone": "Europe/Berlin", "jobTemplate": {}}
    found = find_runs(CronJobSpec.model_validate(spec), dt.datetime.fromisoformat(after))
    assert [f"{each:%d %H:%M}" for each in islice(found, 2)] == runs
