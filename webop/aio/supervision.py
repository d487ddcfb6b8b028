"""Restart tasks that must run as long as the operator, after an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from webop.aio.backoff import Backoff, format_pause
from webop.aio.cancellation import count_cancellations

logger = logging.getLogger(__name__)

_DELAYS = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds
_HEALTHY = 60.0  # seconds; after such a run, the delays start over


async def keep_running(fn: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Run a function until it returns; after an error, log it, wait and run it again."""
    backoff = Backoff(_DELAYS, jitter=0.2)
    loop = asyncio.get_running_loop()
    while True:
        started = loop.time()
        try:
            await fn()
        except Exception:
            if count_cancellations():
                logger.exception("The %s failed while the operator stops.", name)
                return
            if loop.time() - started > _HEALTHY:
                backoff.reset()
            pause = backoff.next() or 0
            text = "Bug in webop: the %s failed, and starts again in %s s. Please report this."
            logger.exception(text, name, format_pause(pause))
            await asyncio.sleep(pause)
        else:
            return
