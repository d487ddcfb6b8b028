"""Schedules: which run is due, and which comes next."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronjob_models import CronJobSpec
from cronsim import CronSim, CronSimError


class ScheduleError(Exception):
    """Why no run can start: a reason, and a text."""


def find_runs(spec: CronJobSpec, after: dt.datetime) -> Iterator[dt.datetime]:
    """Yield the runs after a time, in UTC; raise ScheduleError if there are none."""
    try:
        runs = CronSim(spec.schedule, after.astimezone(ZoneInfo(spec.time_zone)))
    except CronSimError as exc:
        raise ScheduleError("InvalidSchedule", f"spec.schedule: {exc}.") from exc
    except (LookupError, OSError, ValueError) as exc:
        raise ScheduleError("InvalidSchedule", "spec.timeZone is unknown.") from exc
    for run in runs:
        if run > after:  # when clocks go back, CronSim can return a time of the hour before
            yield run.astimezone(dt.UTC)
    raise ScheduleError("InvalidSchedule", "spec.schedule has no runs.")


def find_due_run(spec: CronJobSpec, since: dt.datetime, now: dt.datetime) -> dt.datetime | None:
    """Return the last run after `since` if it can still start; None if there was none."""
    earliest = since
    if spec.starting_deadline_seconds is not None:
        earliest = max(since, now - dt.timedelta(seconds=spec.starting_deadline_seconds))
    due = [*islice(takewhile(lambda run: run <= now, find_runs(spec, earliest)), 101)]
    if len(due) > 100:
        raise ScheduleError("TooManyMissedRuns", "Set or reduce spec.startingDeadlineSeconds.")
    if not due and (first := next(find_runs(spec, since))) <= now:
        raise ScheduleError("MissedSchedule", f"No Job could start in time since {first}.")
    return due[-1] if due else None
