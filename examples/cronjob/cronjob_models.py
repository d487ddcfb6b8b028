"""The kind CronJob in two versions, of which v1 is stored; definitions follow from the classes."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

import pydantic
from kubex.k8s.v1_36.batch.v1.job_template_spec import JobTemplateSpec
from kubex.k8s.v1_36.core.v1.object_reference import ObjectReference

import webop
from webop.models import CEL, Conditions, Int32, Model, Schemaless, Struct, resource

PART = "[0-9A-Za-z*,/#-]{1,100}"
NAME_RULE = CEL("self.metadata.name.size() <= 52", message="the name is too long")
CronField = Annotated[str, pydantic.Field(pattern=f"^{PART}$")]


class CommonSpec(Struct):
    """What all versions have."""

    time_zone: str = pydantic.Field(default="UTC", min_length=1, max_length=100)
    starting_deadline_seconds: Int32 | None = pydantic.Field(default=None, ge=0)
    """A run that cannot start within these seconds is skipped."""
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = "Allow"
    """Whether a run starts while the last one is active, does not start, or replaces it."""
    suspend: bool = False
    job_template: Annotated[JobTemplateSpec, Schemaless()]
    successful_jobs_history_limit: Int32 = pydantic.Field(default=3, ge=0)
    failed_jobs_history_limit: Int32 = pydantic.Field(default=1, ge=0)


class CronJobSpec(CommonSpec):
    """Which Jobs to start, and when."""

    schedule: str = pydantic.Field(pattern=f"^{PART}( {PART}){{4}}$", max_length=504)
    """Minute, hour, day of the month, month and day of the week, such as "*/5 * * * *"."""


class CronJobStatus(Struct):
    """What the operator has done."""

    active: list[ObjectReference] = pydantic.Field(default_factory=list)
    last_schedule_time: dt.datetime | None = None
    conditions: Conditions = pydantic.Field(default_factory=Conditions)


@resource("batch.example.com", "v1", columns={"Schedule": ".spec.schedule"})
@NAME_RULE
class CronJob(Model):
    """Jobs that are started by a schedule."""

    spec: CronJobSpec
    status: CronJobStatus | None = None


class CronSchedule(Struct):
    """When to run."""

    minute: CronField = "*"
    hour: CronField = "*"
    day_of_month: CronField = "*"
    month: CronField = "*"
    day_of_week: CronField = "*"


class CronJobSpecV2(CommonSpec):
    """Which Jobs to start, and when."""

    schedule: CronSchedule


@resource("batch.example.com", "v2", kind="CronJob", stored=False)
@NAME_RULE
class CronJobV2(Model):
    """Jobs that are started by a schedule."""

    spec: CronJobSpecV2
    status: CronJobStatus | None = None


@webop.on.convert(CronJob, to=CronJobV2)
async def split(old: CronJob) -> CronJobV2:
    """Give each part of the schedule its field."""
    parts = zip(CronSchedule.model_fields, old.spec.schedule.split(), strict=True)
    fields = {**dict(old.spec), "schedule": CronSchedule(**dict(parts))}
    return CronJobV2(spec=CronJobSpecV2(**fields), status=old.status)


@webop.on.convert(CronJobV2, to=CronJob)
async def join(new: CronJobV2) -> CronJob:
    """Join the parts of the schedule."""
    fields = {**dict(new.spec), "schedule": " ".join(dict(new.spec.schedule).values())}
    return CronJob(spec=CronJobSpec(**fields), status=new.status)
