"""Calls the handlers of activities: startup, cleanup, login, probes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

from webop.calls.error_policy import Outcome
from webop.calls.execution import execute
from webop.calls.progress import Progress
from webop.calls.shared_options import CallOptions
from webop.calls.threads import count_abandoned
from webop.context.operator_context import OperatorContext
from webop.errors import ActivityError
from webop.handlers.causes import ActivityCause
from webop.handlers.model import Activity, ActivityHandler, ErrorsMode


async def run_activity(
    operator: OperatorContext, activity: Activity, *, is_planning: bool = False
) -> dict[str, Any]:
    """Call all handlers of an activity, with retries, until each has succeeded or failed for good.

    Returns:
        The results by handler id.

    Raises:
        ActivityError: at least one handler has failed for good; webop still called all others.
    """
    handlers: list[ActivityHandler] = []
    # The kubelet waits for the response, so failed probes are not retried.
    default = ErrorsMode.PERMANENT if activity is Activity.PROBE else ErrorsMode.TEMPORARY
    counts: Counter[str] = Counter()
    for handler in operator.registry.select_activities(activity):
        counts[handler.id] += 1  # functions of several modules often have the same name
        suffix = f"-{counts[handler.id]}" if counts[handler.id] > 1 else ""
        errors = handler.errors or default
        handlers.append(replace(handler, id=f"{handler.id}{suffix}", errors=errors))
    hung = [handler.id for handler in handlers if count_abandoned(handler.fn)]
    if hung and activity is Activity.PROBE:  # each further call could block a thread without end
        names = ", ".join(hung)
        what = f"The {activity.value} has failed: an earlier call of {names} is still running"
        raise ActivityError(f"{what}. Set a timeout for what it waits for", kind=f"{what}.")
    if operator.client is not None:
        operator.client.enter()  # probes do not run in the operator's tasks
    cause = ActivityCause(
        logger=logging.getLogger(f"webop.activities.{activity.value}"),
        recall=lambda: operator.memos.operator_memo,
        indices=operator.indices,
        activity=activity,
        settings=operator.settings,
        planning=is_planning,
    )
    progress = Progress.start(handlers)
    options = CallOptions(operator.settings, counters=operator.counters)
    outcomes: dict[str, Outcome] = {}
    while not progress.is_finished:
        await asyncio.sleep(progress.delay or 0)
        outcomes |= await execute(handlers, cause, progress, options)
    failed = {key: outcome.message for key, outcome in outcomes.items() if outcome.exception}
    if failed:
        kind = f"The {activity.value} has failed in {', '.join(failed)}."
        raise ActivityError(" ".join(failed.values()), kind=kind)
    return {key: outcome.result for key, outcome in outcomes.items()}
