"""The handlers of the operator's own life: startup, cleanup, login, probes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from webop.errors import ActivityError
from webop.handling.causes import ActivityCause
from webop.handling.context import OperatorContext
from webop.handling.execute import execute
from webop.handling.handlers import Activity, ActivityHandler, ErrorsMode
from webop.handling.policy import Outcome
from webop.handling.progress import Progress
from webop.handling.terms import Terms
from webop.handling.threads import count_abandoned
from webop.lifecycles import all_at_once


async def run_activity(operator: OperatorContext, activity: Activity) -> dict[str, Any]:
    """Call all handlers of an activity, with retries, until each has succeeded or failed.

    Returns:
        The results by ids of the handlers.

    Raises:
        ActivityError: at least one has failed for good; the others were called all the same.
    """
    handlers = list(_tell_apart(operator.registry.select_activities(activity)))
    hung = [handler.id for handler in handlers if count_abandoned(handler.fn)]
    if hung and activity is Activity.PROBE:  # each further call could take a thread for good
        raise ActivityError(
            f"The {activity.value} has failed: an earlier call of {', '.join(hung)} has not ended. "
            f"Set a time limit for what it waits for"
        )
    cause = ActivityCause(
        logger=logging.getLogger(f"webop.activities.{activity.value}"),
        memo=operator.memos.operator_memo,
        indices=operator.indices,
        activity=activity,
        settings=operator.settings,
    )
    progress = Progress.start(handlers)
    terms = Terms(
        operator.settings,
        lifecycle=all_at_once,
        default_errors=_mode_of(activity),
        success_level=_level_of(activity),
    )
    outcomes: dict[str, Outcome] = {}
    while not progress.is_finished:
        await asyncio.sleep(progress.delay or 0)
        outcomes |= await execute(handlers, cause, progress, terms)
    failed = {key: outcome.exception for key, outcome in outcomes.items() if outcome.exception}
    if failed:
        listed = "; ".join(f"{key}: {exc}" for key, exc in failed.items())
        raise ActivityError(f"The {activity.value} has failed in {listed}")
    return {key: outcome.result for key, outcome in outcomes.items()}


def _tell_apart(handlers: Iterable[ActivityHandler]) -> Iterator[ActivityHandler]:
    """Number the handlers of one id: functions of several modules often have the same name."""
    counts: Counter[str] = Counter()
    for handler in handlers:
        counts[handler.id] += 1
        count = counts[handler.id]
        yield handler if count == 1 else replace(handler, id=f"{handler.id}-{count}")


def _mode_of(activity: Activity) -> ErrorsMode:
    """Whoever asks for the health waits for the answer: probes are not retried by themselves."""
    return ErrorsMode.PERMANENT if activity is Activity.PROBE else ErrorsMode.TEMPORARY


def _level_of(activity: Activity) -> int:
    """Probes and logins come again and again; their success is no news."""
    return logging.INFO if activity in (Activity.STARTUP, Activity.CLEANUP) else logging.DEBUG
