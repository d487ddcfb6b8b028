"""Tests of CronJobs in memory and on a real API server, with the same functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cronjob_models import CronJob, CronJobSpec, CronJobV2
from cronjobs import run
from kubex.k8s.v1_36.batch.v1.job import Job
from schedules import find_runs

import webop
from webop.testing import Clock, ClusterError, FakeClient, check_round_trips, eventually

FOLDER = Path(__file__).parent
POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}
TIME = "2026-01-01T00:00:00Z"
BEFORE = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}
in_memory = pytest.mark.parametrize("world", ["memory"], indirect=True)
on_a_cluster = pytest.mark.parametrize("world", ["cluster"], indirect=True)


class World:
    """A cluster with a CronJob that runs each hour, for the first time in half an hour."""

    def __init__(self, client: webop.AsyncClient, clock: Clock, namespace: str) -> None:
        self.client, self.clock = client, clock
        self.place: Any = {"namespace": namespace}
        self.first = clock.now.replace(second=0, microsecond=0) + dt.timedelta(minutes=30)

    def build(self, name: str = "hello", pod: Any = POD, **spec: Any) -> dict[str, Any]:
        template = {"spec": {"template": {"spec": pod}}}
        spec = {"schedule": f"{self.first.minute} * * * *", "jobTemplate": template, **spec}
        head = {"apiVersion": "batch.example.com/v1", "kind": "CronJob"}
        return {**head, "metadata": {"name": name, **self.place}, "spec": spec}

    async def create(self, **spec: Any) -> Any:
        await self.client.create(self.build(**spec))
        return await self.later()

    async def later(self, hours: float = 0, **spec: Any) -> Any:
        """Move the time, change the CronJob, and return it when the reconciler has seen that."""
        self.clock.advance(hours=hours)
        labels = {"now": f"{self.clock.now.timestamp():.0f}"}  # so that there is a change
        change = {"spec": {"jobTemplate": {"metadata": {"labels": labels}}, **spec}}
        await self.client.patch(CronJob, "hello", change, **self.place)
        return await eventually(self.look)

    async def finish(self, result: str) -> Any:
        """Write the status of an active Job, as its controller does."""
        name = (await self.look()).status.active[-1].name
        end = TIME if result == "Complete" else None
        conditions = [{"type": each, "status": "True"} for each in (BEFORE[result], result)]
        status = {"startTime": TIME, "completionTime": end, "conditions": conditions}
        await self.client.patch(Job, name, {"status": status}, subresource="status", **self.place)
        return await eventually(partial(self.look, finished=name))

    async def look(self, finished: str = "") -> Any:
        """Return the CronJob if its status is of its generation, and has no such active Job."""
        if isinstance(self.client, FakeClient):
            await self.client.reconcile(run, self.build())
        cronjob: Any = await self.client.get(CronJob, "hello", **self.place)
        seen = cronjob.status.conditions.get("Degraded").observed_generation
        assert seen == cronjob.metadata.generation
        assert finished not in [job.name for job in cronjob.status.active]
        return cronjob

    async def list_runs(self) -> list[float]:
        """Return the scheduled times of all Jobs, in hours after the first one."""
        jobs: Any = await self.client.list(Job, **self.place)
        times = [job.metadata.name.removeprefix("hello-") for job in jobs]
        return sorted((int(time) - self.first.timestamp()) / 3600 for time in times)


@pytest.fixture(params=["memory", "cluster"])
async def world(request: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    if request.param == "memory":
        fake = FakeClient(CronJob, now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        yield World(fake, fake.clock, "default")
        return
    names = ("webop_cluster", "webop_namespace", "webop_operator")
    cluster, namespace, operator = map(request.getfixturevalue, names)
    cluster.apply(FOLDER / "manifests")
    account = cluster.kubeconfig_for("system:serviceaccount:cronjobs:cronjobs")
    clock = Clock(dt.datetime.now(dt.UTC))
    monkeypatch.setattr(webop, "now", lambda: clock.now)  # of the operator, in another thread
    async with webop.client.connect() as client:
        with operator("-A", "cronjobs.py", env={"KUBECONFIG": str(account)}):
            yield World(client, clock, namespace)


def get_reasons(cronjob: Any) -> list[str]:
    return [it.reason for it in cronjob.status.conditions]


async def test_a_job_starts_in_time_without_a_change(world: World) -> None:
    async def find_job() -> Any:
        cronjob = await world.look()
        assert cronjob.status.last_schedule_time == world.first
        return await world.client.get(Job, cronjob.status.active[0].name, **world.place)

    cronjob = await world.create()
    world.clock.now = world.first - dt.timedelta(seconds=1)
    await world.later()
    world.clock.now = world.first
    job = await eventually(find_job)
    assert job.metadata.annotations["batch.example.com/scheduled-at"] == world.first.isoformat()
    assert job.metadata.owner_references[0].uid == cronjob.metadata.uid
    assert job.metadata.labels["now"]
    assert job.spec.template.spec.containers[0].image == "busybox"


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
async def test_the_last_run_that_is_due_starts(
    world: World, spec: Any, hours: float, runs: list[float], reasons: list[str]
) -> None:
    await world.create(**spec)
    assert get_reasons(await world.later(hours=hours)) == reasons[:3]
    assert await world.list_runs() == runs


@pytest.mark.parametrize(("policy", "runs"), [("Allow", [0, 1]), ("Forbid", [0]), ("Replace", [1])])
async def test_a_run_while_another_one_is_active(world: World, policy: str, runs: Any) -> None:
    await world.create(concurrencyPolicy=policy)
    await world.later(hours=1)
    await world.later(hours=1)
    assert await world.list_runs() == runs
    await world.finish("Complete")
    assert await world.list_runs() == ([0, 1] if policy == "Forbid" else runs)


@pytest.mark.parametrize(("limit", "runs"), [(3, [2, 3, 4, 5]), (0, [2])])
async def test_old_jobs_are_deleted_and_do_not_run_again(
    world: World, limit: int, runs: Any
) -> None:
    await world.create(successfulJobsHistoryLimit=limit)
    for result in ["Failed", "Complete", "Failed", "Complete", "Complete", "Complete"]:
        await world.later(hours=1)
        await world.finish(result)
    assert get_reasons(await world.later()) == ["JobsFailed", "NoJobsActive", "JobsFailed"]
    assert await world.list_runs() == runs


@in_memory
async def test_a_wrong_schedule_that_was_stored_is_reported(world: World) -> None:
    assert get_reasons(await world.create(schedule="61 * * * *"))[2] == "InvalidSchedule"
    assert get_reasons(await world.later(schedule="1 * * * *"))[2] == "AsExpected"


@on_a_cluster
async def test_a_job_that_the_api_server_refuses_is_reported(world: World) -> None:
    await world.create(pod={**POD, "restartPolicy": "Always"})
    assert get_reasons(await world.later(hours=1))[2] == "JobNotStarted"


@on_a_cluster
async def test_wrong_cronjobs_are_denied(world: World, webop_cluster: Any) -> None:
    def read_denial(wrong: Any) -> str:
        try:
            webop_cluster.apply(world.build(**wrong), dry_run=True)
        except ClusterError as exc:
            return str(exc)
        return ""  # the API server does not know the webhook yet

    for wrong, message in (
        ({"schedule": "61 * * * *"}, "spec.schedule: Bad minute"),
        ({"schedule": "@daily"}, "spec.schedule: Invalid value"),
        ({"timeZone": "Mars"}, "spec.timeZone is unknown"),
        ({"name": "x" * 53}, "the name is too long"),
        ({"pod": {}}, "spec.jobTemplate.spec.template.spec.containers: "),
    ):
        assert message in eventually(partial(read_denial, wrong))


async def test_both_versions_show_the_same_cronjob(world: World) -> None:
    await world.create(schedule="*/5 8 * * 1-5")
    new: Any = await eventually(partial(world.client.get, CronJobV2, "hello", **world.place))
    assert (new.spec.schedule.minute, new.spec.schedule.day_of_month) == ("*/5", "*")
    assert new.status.conditions.get("Available")
    change = {"spec": {"schedule": {"hour": "9"}}}
    await world.client.patch(CronJobV2, "hello", change, **world.place)
    assert (await world.later()).spec.schedule == "*/5 9 * * 1-5"


@on_a_cluster
async def test_the_samples_get_defaults(world: World, webop_cluster: Any) -> None:
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
