"""The ASGI app: reviews, probes, and the operator as its lifespan.

``uvicorn webop.app:app`` is configured by the environment: ``WEBOP_MODULES=handlers.py,pkg.mod``,
``WEBOP_ALL_NAMESPACES=1`` or ``WEBOP_NAMESPACES=…``, ``WEBOP_ALIASED=1``, and each setting as
``WEBOP_<GROUP>__<NAME>``. Reviews are POSTs to ``/`` (all handlers that match) and to
``/<handler-id>``; probes are GETs of ``/healthz``, ``/livez``, ``/readyz``; ``GET /metrics`` is for
Prometheus; ``GET /`` lists what is served. The status page is on the port of the probes only.

Users can mount :class:`OperatorApp` into an app of theirs. Frameworks do not run the lifespans of
mounted apps, so the outer app must run :meth:`OperatorApp.lifespan`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, Unpack, cast

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from webop.errors import ActivityError, ConfigurationError, WebopError
from webop.handlers.options import check_names, spell_out
from webop.kopf_alias import alias_kopf
from webop.logs import configure
from webop.monitoring.status_page import HEADERS, Page
from webop.objects.namespace_patterns import NamespacePattern
from webop.reactor.observer import Scope as NamespaceScope
from webop.runtime import workers
from webop.runtime.loading import guess_name, load_sources, to_list
from webop.runtime.operator import Operator, OperatorArguments, OperatorOptions
from webop.runtime.signals import end_tasks, retiring_at_signals
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.responses import RETRY, build_refusal
from webop.settings.groups import OperatorSettings
from webop.version import __version__

logger = logging.getLogger(__name__)

T = TypeVar("T")

# After a scrape, as a multiple of its time: constant scraping takes at most a tenth of the CPU.
_SCRAPE_PAUSE = 9

_ADVICE = (
    "There are no handlers. Set WEBOP_MODULES to files or modules with handlers, such as "
    "WEBOP_MODULES=handlers.py,package.module, and restart."
)
_NO_LIFESPAN = (
    "the lifespan of its app was not run. If the app is mounted into another app, the outer app "
    "must run it: Starlette(lifespan=operator.lifespan) or FastAPI(lifespan=…), where operator is "
    "the result of webop.create_app(). The server must not disable lifespans (--lifespan off)."
)


class AppOptions(OperatorArguments, total=False):
    """The options of :func:`create_app`; the defaults come from the environment."""

    modules: str | Iterable[str] | None
    """Files and modules to import first, such as ``handlers.py`` and ``a.module``; by default
    ``WEBOP_MODULES``"""
    clusterwide: bool | None
    """Whether to serve all namespaces; by default ``WEBOP_ALL_NAMESPACES``"""
    namespaces: str | Collection[NamespacePattern] | None
    """The namespaces to serve, by names or patterns; by default ``WEBOP_NAMESPACES``; if that is
    empty, all namespaces"""


class OperatorApp:
    """An ASGI 3 app around one operator.

    Reviews go straight to their endpoint, everything else through Starlette.

    Args:
        build: makes the options of the operator, which runs as the lifespan of the app.
        operator: an operator that runs elsewhere. The app then has no lifespan, and serves only
            the probes, no reviews.
        health_path: the path of the probe handlers' results.
        metrics_path: the path of the metrics; None to disable them.
        page: the status page; None to disable it.
    """

    def __init__(
        self,
        build: Callable[[], OperatorOptions] | None = None,
        *,
        operator: Operator | None = None,
        health_path: str = "/healthz",
        metrics_path: str | None = "/metrics",
        page: Page | None = None,
    ) -> None:
        self._build = build
        self.operator = operator
        self._endpoint: ReviewEndpoint | None = None
        self._is_alive = False
        self._built: dict[str, tuple[float, Any]] = {}  # when its building began, and the result
        self._building = asyncio.Lock()
        self._next_build = 0.0
        self._starlette = Starlette(
            routes=[
                Route(health_path, self._report_health, methods=["GET"]),
                Route("/", self._describe, methods=["GET"]),
                Route("/livez", self._report_liveness, methods=["GET"]),
                Route("/readyz", self._report_readiness, methods=["GET"]),
            ]
        )
        self._starlette.router.redirect_slashes = False  # fails if a query is not UTF-8
        if metrics_path is not None:
            self._starlette.add_route(metrics_path, self._report_metrics, methods=["GET"])
        self._page = page
        for path in (page.report_path, *page.files) if page else ():
            self._starlette.add_route(path, self._show_page, methods=["GET"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or run the lifespan (ASGI 3)."""
        if self._build is not None and scope["type"] == "http" and scope["method"] == "POST":
            if self._endpoint is None or self.operator is None or not self.operator.is_started:
                reason = self._explain_absence() or " and ".join(self._list_obstacles())
                await _refuse(f"The operator does not run: {reason}")(scope, receive, send)
            else:
                await self._endpoint(scope, receive, send)
        elif self._build is not None and scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif self.operator is not None and self.operator.webhooks.hosting.is_stopping:
            await self._starlette(scope, receive, _closing(send))
        else:
            await self._starlette(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, outer: Any = None) -> AsyncIterator[None]:  # noqa: ARG002
        """Run the operator during a block, which begins after the startup handlers.

        Use it as the lifespan of an app that mounts this one, or in code that shares its event
        loop with the operator. It does not configure logging::

            operator = webop.create_app(modules=["handlers.py"])
            app = Starlette(routes=[Mount("/webop", operator)], lifespan=operator.lifespan)

        In the main thread, SIGTERM is delayed: webhooks are served for another
        ``settings.admission.shutdown_delay``, then the server gets the signal.

        Args:
            outer: the app whose lifespan this is; not used.

        Raises:
            ConfigurationError: it is already running; or an option, a module or a setting is wrong.
            WebopError: the startup failed; on leaving the block, the operator or the cleanup.
        """
        if self._build is None or self._is_alive:
            raise ConfigurationError(
                "The operator of this app is already running: run its lifespan in one place only."
            )
        self._is_alive, decided = True, asyncio.Event()

        def begin() -> None:
            _check_workers(operator)
            decided.set()

        try:
            operator = self.operator = Operator(self._build(), on_ready=begin)
            if not len(operator.context.registry):
                logger.warning(_ADVICE)
            self._building = asyncio.Lock()  # an app can run again in another event loop
            webhooks = operator.webhooks
            self._endpoint = ReviewEndpoint(webhooks.review, hosting=webhooks.hosting)
            task = asyncio.create_task(operator.run(), name="operator")
            task.add_done_callback(lambda _: decided.set())
            try:
                await decided.wait()
                if task.done():
                    failure = _get_failure(task)
                    raise failure or WebopError("The operator ended right after its start.")
                task.add_done_callback(_report_end)
                with retiring_at_signals(self._retire):
                    yield
            finally:
                await end_tasks({task})
            if (failure := _get_failure(task)) is not None:
                raise failure
        finally:
            self._is_alive = False

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """Start the operator with the server, stop it with the server (ASGI lifespan)."""
        await receive()
        if not logging.getLogger().handlers:
            # As the command line does; the server has its own loggers.
            configure(log_prefix=True)
        phase = "startup"
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as exc:
            why = str(exc) if isinstance(exc, WebopError) else f"The {phase} failed: {exc!r}"
            await send({"type": f"lifespan.{phase}.failed", "message": why})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    def _list_obstacles(self) -> list[str]:
        absence = self._explain_absence()
        if self.operator is None or (absence and not self.operator.problem):
            return [absence]
        return self.operator.list_obstacles()

    def _explain_absence(self) -> str:
        """Return why there is no operator, if there will be none; else an empty text."""
        if self._build is None or self._is_alive:
            return ""
        return _NO_LIFESPAN if self.operator is None else "it has stopped"

    async def _retire(self) -> None:
        """After the signal to stop, serve for a while without being ready; then withdraw.

        This must happen before the server gets the signal, as it closes its port first.
        """
        workers.release()
        if self.operator is not None and self.operator.is_started:
            await self.operator.retire()
            await self.operator.webhooks.withdraw(is_asked=True)

    async def _describe(self, _: Request) -> Response:
        operator = self.operator
        count = len(operator.context.registry) if operator else 0
        return _respond(
            {
                "webop": __version__,
                "webhooks": operator.webhooks.review.ids if operator else [],
                "handlers": count,
                "role": operator.describe_role() if operator else "",
                "not ready": self._list_obstacles(),
                "missing kinds": operator.list_absent() if operator else [],
                "advice": _ADVICE if operator and not count else "",
            }
        )

    async def _report_health(self, _: Request) -> Response:
        """Run the probe handlers, or return their recent results (manual, "Health-checks")."""
        if self.operator is None or not self.operator.is_started:
            return _respond({"error": "The operator is not running."}, 503)
        try:
            return _respond(await self.operator.probe())
        except ActivityError as exc:
            return _respond({"error": exc.kind}, 500)
        except TypeError:
            return _respond(
                {"error": "JSON cannot represent the results of the probe handlers."}, 500
            )

    async def _report_metrics(self, request: Request) -> Response:
        """Return the metrics of the operator, also before its start and after its end."""
        from webop.monitoring.exposition import choose_format, expose  # noqa: PLC0415 - rarely used

        accept = choose_format(", ".join(request.headers.getlist("accept")))

        async def build() -> tuple[bytes, str]:
            return expose(self.operator, accept)

        content, kind = await self._share(accept, build)
        return Response(content, headers={"content-type": kind})

    async def _show_page(self, request: Request) -> Response:
        page, path = self._page, request.scope["path"]
        if page is None:
            return Response(status_code=404)
        if reason := page.refuse(request.headers.get("host", "")):
            return Response(reason, 403, media_type="text/plain")
        if path != page.report_path:
            content, kind = page.read(path)
            return Response(content, headers={**HEADERS, "content-type": kind})
        wanted = request.query_params.get("object", "")
        build = partial(page.build_report, wanted)
        report = await (build() if wanted else self._share("report", build))
        return Response(orjson.dumps(report), headers=HEADERS, media_type="application/json")

    async def _share(self, what: str, build: Callable[[], Awaitable[T]]) -> T:
        """Build an expensive response, or return one whose building began after this call.

        So clients that wait at the same time share a response, and each gets a new one.
        """
        called = time.monotonic()
        async with self._building:  # first come, first served
            began, built = self._built.get(what, (0.0, None))
            if began <= called:
                await asyncio.sleep(self._next_build - time.monotonic())
                began = time.monotonic()
                built = await build()
                self._built[what] = began, built
                ended = time.monotonic()
                self._next_build = ended + _SCRAPE_PAUSE * (ended - began)
            return cast("T", built)

    async def _report_liveness(self, _: Request) -> Response:
        """Report whether the operator runs, with or without the API server."""
        is_alive = self.operator is not None and self.operator.is_started
        return _respond({"alive": is_alive}, 200 if is_alive else 503)

    async def _report_readiness(self, _: Request) -> Response:
        """Report whether reviews and objects are served, and if not, why."""
        obstacles = self._list_obstacles()
        report = {"not ready": obstacles}
        if absent := self.operator.list_absent() if self.operator else []:
            report["missing kinds"] = absent
        return _respond(report, 503 if obstacles else 200)


@spell_out()
def create_app(**options: Unpack[AppOptions]) -> OperatorApp:
    """Return an ASGI app with an operator, for any ASGI server that runs lifespans.

    ::

        operator = webop.create_app(modules="handlers.py")
        app = Starlette(routes=[Mount("/webop", operator)], lifespan=operator.lifespan)

    See docs/howto/embedding.md.

    Raises:
        TypeError: there is no such option.
        ConfigurationError: both ``clusterwide`` and ``namespaces`` are given.
    """
    check_names("create_app()", options, AppOptions)
    given: Any = {name: value for name, value in options.items() if value is not None}
    if options.get("clusterwide") and options.get("namespaces"):
        raise ConfigurationError("clusterwide= and namespaces= exclude each other.")
    return OperatorApp(partial(build_options, given))


def build_options(
    options: AppOptions, environment: Mapping[str, str] = os.environ
) -> OperatorOptions:
    """Import the modules, and return the options of the operator.

    The options of :func:`create_app` win over the environment variables.

    Raises:
        ConfigurationError: a module cannot be imported, a variable is invalid, or both all
            namespaces and some are requested.
    """
    if _is_on(environment, "WEBOP_ALIASED"):
        alias_kopf()
    sources = to_list(options.get("modules", _split(environment.get("WEBOP_MODULES", ""), ",")))
    load_sources(sources)
    settings = OperatorSettings.choose(options.get("settings"), environment)
    settings.operator.set_default(guess_name(sources))
    return OperatorOptions(
        registry=options.get("registry"),
        settings=settings,
        memo=options.get("memo"),
        lifecycle=options.get("lifecycle"),
        vault=options.get("vault"),
        scope=_build_scope(options, environment),
        identity=options.get("identity"),
        is_hosted=True,
    )


def _build_scope(options: AppOptions, environment: Mapping[str, str]) -> NamespaceScope:
    if "clusterwide" in options or "namespaces" in options:
        patterns = tuple(to_list(options.get("namespaces") or ()))
    else:
        patterns = tuple(_split(environment.get("WEBOP_NAMESPACES", "")))
        if patterns and _is_on(environment, "WEBOP_ALL_NAMESPACES"):
            raise ConfigurationError(
                "WEBOP_ALL_NAMESPACES and WEBOP_NAMESPACES exclude each other."
            )
    return NamespaceScope(not patterns, patterns)


def _check_workers(operator: Operator) -> None:
    """Check that no other worker process of the server handles the same objects."""
    if not operator.watches_objects or operator.context.settings.leadership.lease_name is not None:
        return
    handlers = operator.context.registry.select_resource_handlers()
    scope = operator.options.scope
    if not workers.claim((repr(scope.patterns), *sorted(handler.id for handler in handlers))):
        raise ConfigurationError(
            "This server runs the app in several worker processes, and each would handle all "
            "objects. Run one worker (uvicorn: no --workers, no WEB_CONCURRENCY) and more replicas "
            "if needed, or set settings.leadership.lease_name, so that only one handles objects; "
            "with settings.leadership.sharded, too, they share the work."
        )


def _is_on(environment: Mapping[str, str], variable: str) -> bool:
    return environment.get(variable, "").lower() in ("1", "true", "yes", "on")


def _split(text: str, separator: str | None = None) -> list[str]:
    return [item.strip() for item in text.split(separator) if item.strip()]


def _respond(content: object, status: int = 200) -> Response:
    """Return a response with JSON of any results of probe handlers."""
    text = orjson.dumps(content, default=_encode, option=orjson.OPT_NON_STR_KEYS)
    return Response(text, status, media_type="application/json")


def _encode(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _get_failure(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _report_end(task: asyncio.Task[Any]) -> None:
    if (exc := _get_failure(task)) is not None:
        logger.critical("The operator has ended: %s", exc)


def _closing(send: Send) -> Send:
    """Close each connection after its response."""

    async def send_closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return send_closing


def _refuse(reason: str) -> Response:
    """Return a refusal (meta/v1 Status); API servers retry while they have time."""
    # Close the connection, so that the retry can reach another replica.
    refusal = build_refusal(503, reason, headers=RETRY, closes=True)
    headers = {name.decode(): value.decode() for name, value in refusal.list_headers()}
    return Response(refusal.body, refusal.status, headers)


app = create_app()
