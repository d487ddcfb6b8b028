"""What the startup handlers set: without it, nobody knows what the operator has to be permitted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from webop.doctor.findings import Finding, approve, warn
from webop.doctor.permissions import ACCOUNT_PREFIX
from webop.doctor.visit import Options
from webop.errors import ActivityError
from webop.handling.activities import run_activity
from webop.handling.handlers import Activity
from webop.own_threads import OwnThreads
from webop.reactor.observer import Scope
from webop.running import Operator, OperatorOptions
from webop.settings import OperatorSettings

_TIMEOUT = 10.0  # seconds
_REMEDY = (
    "What they set is not known here. Say it by options, as --managed, --lease and --peering, and "
    "by variables, as WEBOP_POSTING__ENABLED=false."
)


async def call_startup(options: Options, settings: OperatorSettings, server: str) -> Finding | None:
    """Call the startup handlers with the settings, and then the cleanup handlers.

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
    settings.execution.executor = OwnThreads("webop-startup")  # no call keeps the command running
    is_in_pod = (options.account or "").startswith(ACCOUNT_PREFIX)
    with contextlib.redirect_stdout(sys.stderr), _posing_as_pod(server if is_in_pod else ""):
        try:
            async with asyncio.timeout(_TIMEOUT):
                await run_activity(operator, Activity.STARTUP)
        except (TimeoutError, ActivityError) as exc:
            why = str(exc) or f"they have not ended in {_TIMEOUT:g} s"
            return warn("startup", f"the startup handlers do not work here: {why}", _REMEDY)
        with contextlib.suppress(TimeoutError, ActivityError):
            async with asyncio.timeout(_TIMEOUT):
                await run_activity(operator, Activity.CLEANUP)
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
