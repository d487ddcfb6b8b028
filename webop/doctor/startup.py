"""What the startup handlers set: without it, nobody knows what the operator must be permitted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from webop.doctor.findings import Finding, approve, warn
from webop.doctor.visit import Options
from webop.errors import ActivityError
from webop.handling.activities import run_activity
from webop.handling.handlers import Activity
from webop.own_threads import OwnThreads
from webop.reactor.observer import Scope
from webop.running import Operator, OperatorOptions
from webop.settings import OperatorSettings

_REMEDY = (
    "What they set is not known here. Say it by options, as --managed, --lease and --peering, and "
    "by variables, as WEBOP_POSTING__ENABLED=false."
)


class _LastError(logging.Handler):
    """Keeps the last message about a handler that fails and is called again."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.text = f"; the last error: {record.getMessage()}"


async def call_startup(options: Options, settings: OperatorSettings, server: str) -> Finding | None:
    """Call the startup handlers with the settings, and then the cleanup handlers.

    They run in a thread with an event loop of its own, which nobody waits for: whatever they do,
    the command ends.

    Args:
        options: what users ask for.
        settings: the handlers change them.
        server: the URL of the API server; for a service account, the handlers find it where they
            do in a pod.
    """
    registry = options.registry
    if registry is None or not registry.select_activities(Activity.STARTUP):
        return None
    if not options.calls_startup:
        return warn("startup", "the startup handlers are not called (--no-startup)", _REMEDY)
    scope = Scope(not options.namespaces, options.namespaces)
    operator = Operator(OperatorOptions(registry=registry, settings=settings, scope=scope)).context
    threads, limit, done = OwnThreads("webop-startup"), options.startup_timeout, []
    settings.execution.executor = threads
    last, logger = _LastError(), logging.getLogger("webop.activities.startup")

    async def call() -> None:
        await run_activity(operator, Activity.STARTUP)
        done.append(Activity.STARTUP)
        with contextlib.suppress(ActivityError):
            await run_activity(operator, Activity.CLEANUP)

    logger.addHandler(last)
    try:
        with contextlib.redirect_stdout(sys.stderr), _posing_as_pod(server if options.home else ""):
            ended = asyncio.wrap_future(threads.submit(asyncio.run, call()))
            ended.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait({ended}, timeout=limit)
    finally:
        logger.removeHandler(last)
    if not done:
        why = f"they have not ended in {limit:g} s{last.text}"
        if ended.done() and (exc := ended.exception()) is not None:
            why = str(exc) or type(exc).__name__
        return warn("startup", f"the startup handlers do not work here: {why}", _REMEDY)
    return approve("startup", "the settings are those of the startup handlers")


@contextlib.contextmanager
def _posing_as_pod(server: str) -> Iterator[None]:
    """Set the variable by which programs recognise that they run in a pod."""
    name = "KUBERNETES_SERVICE_HOST"
    if not server or name in os.environ:
        yield
        return
    os.environ[name] = urlsplit(server).hostname or ""
    try:
        yield
    finally:
        del os.environ[name]
