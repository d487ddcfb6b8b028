"""Keeping the reactor's long-running tasks alive: an error in one is told, and it starts anew."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from webop.errors import LoginError
from webop.handling.cancellation import is_being_cancelled

logger = logging.getLogger(__name__)

_BACKOFFS = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds
_HEALTHY = 60.0  # seconds; who has run for so long starts with short pauses again


async def keep_running(fn: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Run something that is not to end; start it again after errors, with growing pauses.

    Raises:
        LoginError: there are no credentials; starting again would not help.
    """
    failures = 0
    loop = asyncio.get_running_loop()
    while True:
        started = loop.time()
        try:
            await fn()
        except LoginError:
            raise
        except Exception:
            if loop.time() - started > _HEALTHY:
                failures = 0
            pause = _BACKOFFS[min(failures, len(_BACKOFFS) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311
            failures += 1
            if is_being_cancelled():
                logger.exception("The %s has failed on the way out.", name)
                return
            logger.exception("The %s has failed; it is started again in %.1f s.", name, pause)
            await asyncio.sleep(pause)
        else:
            return
