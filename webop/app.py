"""The ASGI app: reviews, probes, and the operator as its lifespan.

``uvicorn webop.app:app`` is configured by the environment: ``WEBOP_MODULES=handlers.py,pkg.mod``,
``WEBOP_ALL_NAMESPACES=1`` or ``WEBOP_NAMESPACES=…``, and each setting as
``WEBOP_<GROUP>__<NAME>``. Reviews are POSTs to ``/`` (all handlers that match) and to
``/<handler-id>``; probes are GETs of ``/healthz``, ``/livez``, ``/readyz``; ``GET /`` says what is
served.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from webop.errors import ActivityError, ConfigurationError, WebopError
from webop.loading import load_sources
from webop.logs import configure
from webop.reactor.observer import Scope as NamespaceScope
from webop.running import Operator, OperatorOptions
from webop.servers.endpoint import ReviewEndpoint
from webop.version import __version__

logger = logging.getLogger(__name__)

_ADVICE = (
    "There are no handlers. Set WEBOP_MODULES to files or modules with handlers, such as "
    "WEBOP_MODULES=handlers.py,package.module, and restart."
)


class OperatorApp:
    """An ASGI 3 app around one operator.

    Reviews go straight to their endpoint, everything else through Starlette.

    Args:
        options: of the operator, which is made and run as the lifespan of the app.
        sources: files and modules to import before the operator is made.
        operator: an operator that is run by someone else; then the app has no lifespan of its own.
        health_path: where the results of the probe handlers are.
    """

    def __init__(
        self,
        options: OperatorOptions | None = None,
        *,
        sources: Iterable[str] = (),
        operator: Operator | None = None,
        health_path: str = "/healthz",
    ) -> None:
        self._options = options
        self._sources = tuple(sources)
        self.operator = operator
        self._endpoint: ReviewEndpoint | None = None
        self._starlette = Starlette(
            routes=[
                Route("/", self._describe, methods=["GET"]),
                Route(health_path or "/", self._report_health, methods=["GET"]),
                Route("/livez", self._report_liveness, methods=["GET"]),
                Route("/readyz", self._report_readiness, methods=["GET"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or live through the lifespan (ASGI 3)."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST":
            await self._review(scope, receive, send)
        else:
            await self._starlette(scope, receive, send)

    async def _review(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._endpoint is None:
            if self.operator is None or not self.operator.is_started:
                response = JSONResponse({"message": "The operator is not started."}, 503)
                await response(scope, receive, send)
                return
            self._endpoint = ReviewEndpoint(self.operator.review)
        await self._endpoint(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start the operator with the server, stop it with the server (ASGI lifespan)."""
        await receive()
        if not logging.getLogger().handlers:
            configure(log_prefix=True)  # as the command line does; the server logs on its own
        started = asyncio.Event()
        try:
            operator = self._make(started)
        except WebopError as exc:
            await send({"type": "lifespan.startup.failed", "message": f"Error: {exc}"})
            return
        task = asyncio.create_task(operator.run(), name="operator")
        waiter = asyncio.create_task(started.wait())
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if not started.is_set():
            await send({"type": "lifespan.startup.failed", "message": _say_why(task)})
            return
        task.add_done_callback(_report_end)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        task.cancel()
        await asyncio.wait({task})
        failure = None if task.cancelled() else task.exception()
        if failure is None:
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await send({"type": "lifespan.shutdown.failed", "message": f"Error: {failure}"})

    def _make(self, started: asyncio.Event) -> Operator:
        load_sources(self._sources)
        options = self._options or read_environment(os.environ)
        operator = Operator(options, on_ready=started.set)
        if not len(operator.context.registry):
            logger.warning(_ADVICE)
        self.operator, self._endpoint = operator, None
        return operator

    async def _describe(self, _: Request) -> JSONResponse:
        """Say what is served, and what is missing."""
        operator = self.operator
        registry = operator.context.registry if operator else None
        return JSONResponse(
            {
                "webop": __version__,
                "webhooks": operator.review.ids if operator else [],
                "handlers": len(registry) if registry is not None else 0,
                "not ready": operator.list_obstacles() if operator else ["not started"],
                "advice": "" if registry is not None and len(registry) else _ADVICE,
            }
        )

    async def _report_health(self, _: Request) -> JSONResponse:
        """Run the probe handlers, or take their recent results (chapter "Health-checks")."""
        if self.operator is None or not self.operator.is_started:
            return JSONResponse({"error": "The operator is not running."}, 503)
        try:
            return JSONResponse(await self.operator.probe())
        except ActivityError as exc:
            return JSONResponse({"error": str(exc)}, 500)

    async def _report_liveness(self, _: Request) -> JSONResponse:
        """Tell whether the operator runs: it does also when the API server is away."""
        is_alive = self.operator is not None and self.operator.is_started
        return JSONResponse({"alive": is_alive}, 200 if is_alive else 503)

    async def _report_readiness(self, _: Request) -> JSONResponse:
        """Tell whether reviews and objects are served, and if not, why."""
        obstacles = self.operator.list_obstacles() if self.operator else ["not started"]
        return JSONResponse({"not ready": obstacles}, 503 if obstacles else 200)


def create_app(
    options: OperatorOptions | None = None, *, sources: Iterable[str] = ()
) -> OperatorApp:
    """Make an ASGI app around an operator, to be run by any ASGI server.

    Args:
        options: of the operator; by default those of the environment variables.
        sources: files and modules to import handlers from; with no options, also those of
            ``WEBOP_MODULES``.
    """
    if options is None:
        modules = os.environ.get("WEBOP_MODULES", "")
        sources = (*sources, *(name.strip() for name in modules.split(",") if name.strip()))
    return OperatorApp(options, sources=sources)


def read_environment(environment: Mapping[str, str]) -> OperatorOptions:
    """Return the options that the environment variables say.

    Raises:
        ConfigurationError: both all namespaces and some are asked for.
    """
    names = [name.strip() for name in environment.get("WEBOP_NAMESPACES", "").split(" ")]
    patterns = tuple(name for name in names if name)
    everywhere = environment.get("WEBOP_ALL_NAMESPACES", "").lower() in ("1", "true", "yes", "on")
    if everywhere and patterns:
        raise ConfigurationError("WEBOP_ALL_NAMESPACES and WEBOP_NAMESPACES exclude each other.")
    return OperatorOptions(scope=NamespaceScope(not patterns, patterns), is_hosted=True)


def _say_why(task: asyncio.Task[None]) -> str:
    exc = None if task.cancelled() else task.exception()
    return f"Error: {exc}" if isinstance(exc, WebopError) else f"The startup has failed: {exc!r}"


def _report_end(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        logger.critical("The operator has ended: %s", exc)


app = create_app()
