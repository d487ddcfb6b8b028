"""CronJobs: the webhook, and the reconciler that starts Jobs."""

from __future__ import annotations

import datetime as dt
import functools
import os
from typing import Any

from cronjob_models import CronJob, CronJobSpec, CronJobStatus
from kubex.k8s.v1_36.batch.v1.job import Job
from kubex.k8s.v1_36.core.v1.object_reference import ObjectReference
from kubex_core.models.metadata import ObjectMetadata
from schedules import ScheduleError, find_due_run, find_runs

import webop
from webop.errors import WebopError

PLACE = {"namespace", "name", "uid"}


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Serve the webhook and the conversions, in a pod behind a Service."""
    is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    server = webop.WebhookServiceServer() if is_in_pod else webop.WebhookServer(port=0)
    settings.admission.server = server
    settings.admission.managed = "cronjobs.batch.example.com"


@webop.on.validate(CronJob, operations=["CREATE", "UPDATE"])
def check(spec: CronJobSpec, **_: Any) -> None:
    """Deny what the schema cannot express. webop has checked the template by its class."""
    try:
        next(find_runs(spec, webop.now()))
    except ScheduleError as exc:
        raise webop.AdmissionError(exc.args[1], code=422) from exc


@webop.reconcile(CronJob, owns=[Job], reads=[Job], accumulates=[Job])
async def run(
    cronjob: CronJob, patch: webop.Patch, children: webop.Children, **_: Any
) -> webop.Again | CronJobStatus:
    """Start the run that is due, delete old Jobs, and describe what there is."""
    spec, status, now = cronjob.spec, cronjob.status or CronJobStatus(), webop.now()
    jobs = sorted(await children.list(Job), key=get_time, reverse=True)
    active = [job for job in jobs if get_result(job) is None]
    failed = [job for job in jobs if get_result(job) == "Failed"]
    successful = [job for job in jobs if get_result(job) == "Complete"]
    old = failed[spec.failed_jobs_history_limit :]
    old += successful[spec.successful_jobs_history_limit :]

    times = [status.last_schedule_time, *map(get_time, jobs)]
    status.last_schedule_time = max(filter(None, times), default=None)
    due = following = problem = None
    if not spec.suspend:
        since = status.last_schedule_time or cronjob.metadata.creation_timestamp or now
        try:
            following = next(find_runs(spec, now))
            due = find_due_run(spec, since, now)
        except ScheduleError as exc:
            problem = exc.args
    if active and spec.concurrency_policy == "Forbid":
        due = None
    if due and spec.concurrency_policy == "Replace":
        old, active = old + active, []
    for job in old:
        await children.delete(Job, job.metadata.name or "")
    if due:
        try:
            applied = await children.apply(build_job(cronjob, due))
        except WebopError as exc:
            patch.status.set_condition("Degraded", True, reason="JobNotStarted", message=str(exc))
            raise
        active.append(Job.model_validate(applied.object))
        status.last_schedule_time = due

    status.active = [
        ObjectReference(apiVersion="batch/v1", kind="Job", **job.metadata.model_dump(include=PLACE))
        for job in active
    ]
    set_conditions(cronjob, status, failed, problem)
    if following is None:
        return status
    return webop.again(after=(following - now).total_seconds(), status=status)


def get_time(job: Job) -> dt.datetime:
    """Return the scheduled time of a Job, with which its name ends."""
    return dt.datetime.fromtimestamp(int((job.metadata.name or "").rpartition("-")[2]), dt.UTC)


def get_result(job: Job) -> str | None:
    """Return "Complete" or "Failed"; None while the Job is active."""
    for condition in (job.status and job.status.conditions) or ():
        if condition.type_ in ("Complete", "Failed") and condition.status == "True":
            return condition.type_
    return None


def build_job(cronjob: CronJob, scheduled: dt.datetime) -> Job:
    """Return the Job of a run. Its name has the time, so that no run starts twice."""
    name = f"{cronjob.metadata.name}-{int(scheduled.timestamp())}"
    template = cronjob.spec.job_template
    meta = template.metadata or ObjectMetadata()
    notes = {**(meta.annotations or {}), "batch.example.com/scheduled-at": scheduled.isoformat()}
    metadata = ObjectMetadata(name=name, labels=meta.labels, annotations=notes)
    return Job(metadata=metadata, spec=template.spec)


def set_conditions(
    cronjob: CronJob, status: CronJobStatus, failed: list[Job], problem: Any
) -> None:
    """Set Available, Progressing and Degraded, with a reason and a text."""
    put = functools.partial(status.conditions.set, generation=cronjob.metadata.generation)
    count = len(status.active)
    if failed and not problem:
        problem = "JobsFailed", f"Failed Jobs: {len(failed)}."
    work = ("JobsActive", f"Active Jobs: {count}.") if count else ("NoJobsActive", "")
    stop = ("Suspended", "No Jobs are started.") if cronjob.spec.suspend else problem
    put("Available", not stop, *(stop or (work if count else ("AllJobsCompleted", ""))))
    put("Progressing", count > 0, *work)
    put("Degraded", bool(problem), *(problem or ("AsExpected", "")))
