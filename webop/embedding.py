"""Run operators from code (chapter "Embedding").

All functions take the keyword arguments of :class:`EmbeddingOptions`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Unpack
from urllib.parse import urlsplit

from webop.aio.concurrency import find_running_loop, running
from webop.calls.threads import count_calls
from webop.client.auth.vault import Vault
from webop.errors import ConfigurationError
from webop.handlers.options import check_names, spell_out
from webop.logs.terminal import find_formatter
from webop.monitoring.banner import showing_banner
from webop.monitoring.status_page import Page, is_loopback
from webop.objects.namespace_patterns import NamespacePattern
from webop.reactor.observer import Scope
from webop.runtime.loading import to_list
from webop.runtime.operator import Operator, OperatorArguments, OperatorOptions
from webop.runtime.signals import end_tasks, listening_to_signals
from webop.servers.base import build_url, get_reachable_address
from webop.settings.groups import OperatorSettings

logger = logging.getLogger(__name__)

Flag = asyncio.Event | threading.Event | asyncio.Future[Any] | concurrent.futures.Future[Any]
_FLAGS = (asyncio.Event, threading.Event, asyncio.Future, concurrent.futures.Future)

_HUNG_TIMEOUT = 5.0  # seconds; then remaining tasks are cancelled
_FLAG_POLLING = 0.1  # seconds; threading events cannot be awaited


class EmbeddingOptions(OperatorArguments, total=False):
    """The options of :func:`operator`, :func:`run` and :func:`spawn_tasks`."""

    indexers: Any
    """Ignored: for code that passes it to Kopf"""
    memories: Any
    """Ignored, as ``indexers``"""
    insights: Any
    """Ignored, as ``indexers``"""
    standalone: bool | None
    """Whether to ignore peering objects"""
    priority: int | None
    """The priority among peers"""
    peering_name: str | None
    """The name of the peering object"""
    liveness_endpoint: str | None
    """The URL of the probes, such as ``http://0.0.0.0:8080/healthz``"""
    clusterwide: bool
    """Whether to serve all namespaces"""
    namespaces: str | Collection[NamespacePattern]
    """The namespaces to serve, by names or patterns"""
    namespace: NamespacePattern | None
    """One namespace; new code uses ``namespaces``"""
    stop_flag: Flag | None
    """Set it to stop the operator: an event or future of asyncio, threading, concurrent.futures"""
    ready_flag: Flag | None
    """The same; webop sets it when the startup handlers have succeeded"""
    metrics_endpoint: str | None
    """The URL of the metrics, such as ``http://0.0.0.0:8080/metrics``"""
    status_endpoint: str | None
    """The URL of the status page, such as ``http://localhost:8081/ui``"""


@spell_out(clusterwide=False, namespaces=())
def run(
    *, loop: asyncio.AbstractEventLoop | None = None, **options: Unpack[EmbeddingOptions]
) -> None:
    """Run an operator until it has stopped.

    ::

        import webop
        import handlers  # registers them

        webop.run(clusterwide=True, liveness_endpoint="http://0.0.0.0:8080/healthz")

    See docs/howto/embedding.md.

    Args:
        loop: the event loop to use; by default a new one.

    Raises:
        WebopError: the operator failed; the message has the reason.
        RuntimeError: an event loop already runs in this thread.
    """
    if find_running_loop() is not None:
        raise RuntimeError(
            "webop.run() cannot run inside a running event loop. Await webop.operator() instead."
        )
    with contextlib.suppress(asyncio.CancelledError):
        if loop is not None:
            loop.run_until_complete(operator(**options))
        else:
            asyncio.run(operator(**options))


@spell_out(clusterwide=False, namespaces=())
async def operator(**options: Unpack[EmbeddingOptions]) -> None:
    """Run an operator in the running event loop until it is stopped or cancelled.

    ::

        async def main():
            await webop.operator(clusterwide=True, stop_flag=stop)

    See docs/howto/embedding.md.

    Raises:
        WebopError: the operator failed; the message has the reason.
    """
    existing = asyncio.all_tasks()
    tasks = await spawn_tasks(**options)
    await run_tasks(tasks, ignored=existing)


@spell_out(clusterwide=False, namespaces=())
async def spawn_tasks(**options: Unpack[EmbeddingOptions]) -> Collection[asyncio.Task[None]]:
    """Start the root tasks of an operator and return them, for :func:`run_tasks`.

    ::

        tasks = await webop.spawn_tasks(clusterwide=True)
        await webop.run_tasks(tasks)

    Raises:
        ConfigurationError: the options contradict each other.
        TypeError: an option does not exist, or a flag has the wrong type.
    """
    for name in ("ready_flag", "stop_flag"):
        flag = options.get(name)
        if flag is not None and not isinstance(flag, _FLAGS):
            raise TypeError(
                f"{name}= must be an event of asyncio or threading, or a future of asyncio or "
                f"concurrent.futures, got {flag!r}."
            )
    made = Operator(build_options(options), on_ready=lambda: _raise_flag(options.get("ready_flag")))
    running = _Running(made, options.get("stop_flag"))
    return [
        asyncio.create_task(running.run(), name="operator"),
        asyncio.create_task(running.wait_for_stop(), name="stop flag"),
    ]


async def run_tasks(
    root_tasks: Collection[asyncio.Task[None]],
    *,
    ignored: Collection[asyncio.Task[Any]] = frozenset(),
) -> None:
    """Wait until one of the root tasks ends, then stop all of them.

    Then wait five seconds for all other tasks of the loop, except for ``ignored``, and cancel
    those that remain.

    Raises:
        Exception: the error of a root task.
    """
    try:
        await asyncio.wait(root_tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(root_tasks)
        await _stop_hung({*asyncio.all_tasks()} - {*ignored, *root_tasks, asyncio.current_task()})
    for task in root_tasks:
        if not task.cancelled() and (exc := task.exception()) is not None:
            raise exc


def build_options(options: EmbeddingOptions) -> OperatorOptions:
    """Return the options of the operator for the documented options.

    Raises:
        TypeError: an option does not exist or has the wrong type.
        ConfigurationError: both clusterwide and namespaces are set, an endpoint is not an
            HTTP URL, or two endpoints are equal.
    """
    check_names("operators", options, EmbeddingOptions)
    vault = options.get("vault")
    if not (vault is None or isinstance(vault, Vault)):
        raise TypeError(f"vault= must be a webop.Vault, as in Vault({{'name': …}}), got {vault!r}.")
    settings = OperatorSettings.choose(options.get("settings"))
    if (standalone := options.get("standalone")) is not None:
        settings.peering.standalone = standalone
    if (priority := options.get("priority")) is not None:
        settings.peering.priority = priority
    if (peering_name := options.get("peering_name")) is not None:
        settings.peering.name = peering_name
        settings.peering.mandatory = True
    pages: list[str] = []  # for the banner
    endpoints = _parse_endpoints(options).items()
    services = [_build_service(*address, paths, pages) for address, paths in endpoints]
    return OperatorOptions(
        registry=options.get("registry"),
        settings=settings,
        memo=options.get("memo"),
        lifecycle=options.get("lifecycle"),
        vault=vault,
        scope=_build_scope(options),
        identity=options.get("identity"),
        services=[*services, partial(showing_banner, pages=pages)],
    )


def _build_scope(options: EmbeddingOptions) -> Scope:
    single = options.get("namespace")
    patterns = (*to_list(options.get("namespaces", ())), *(() if single is None else (single,)))
    clusterwide = options.get("clusterwide", False)
    if clusterwide and patterns:
        raise ConfigurationError(
            "All namespaces (-A, clusterwide=True) and some namespaces (-n, namespaces=[…]) "
            "exclude each other. Use only one of them."
        )
    if not clusterwide and not patterns:
        text = (
            "No namespaces are selected; the operator serves all of them. Confirm this with -A or "
            "clusterwide=True, or select namespaces with -n or namespaces=[…]."
        )
        warnings.warn_explicit(text, FutureWarning, __name__, 1)  # one line, without our code
    return Scope(clusterwide or not patterns, patterns)


def _parse_endpoints(options: EmbeddingOptions) -> dict[tuple[str, int], dict[str, str]]:
    """Return the paths of the probes, the metrics and the status page, by hosts and ports.

    Ports of the loopback interface always serve the page, others only if they are its endpoint.
    """
    endpoints = (
        ("liveness", options.get("liveness_endpoint"), "http://0.0.0.0:8080/healthz", "/"),
        ("metrics", options.get("metrics_endpoint"), "http://0.0.0.0:8080/metrics", "/metrics"),
        ("status", options.get("status_endpoint"), "http://localhost:8080/ui", "/ui"),
    )
    listeners: defaultdict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for title, url, example, default in endpoints:
        if url:
            address, path = _parse_endpoint(title, url, example)
            path = (path.rstrip("/") if title == "status" else path) or default
            listeners[address][title] = path
    for (host, port), paths in listeners.items():
        if is_loopback(host):
            paths.setdefault("status", "/ui")
        titles = dict[str, str]()
        for title, path in paths.items():
            if (other := titles.setdefault(path, title)) != title:
                url = build_url("http", host, port, None) + path
                raise ConfigurationError(
                    f"The {title} endpoint {url} is also the {other} endpoint. Change a path."
                )
    return listeners


def _parse_endpoint(title: str, url: str, example: str) -> tuple[tuple[str, int], str]:
    """Return the host and the port, and the path."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:  # a port beyond 65535
        raise ConfigurationError(
            f"The {title} endpoint {url!r} must be a valid URL, such as {example}: {exc}."
        ) from None
    if parts.scheme != "http":
        raise ConfigurationError(
            f"The {title} endpoint {url!r} must be an http:// URL, such as {example}."
        )
    return (parts.hostname or "localhost", 80 if port is None else port), parts.path


def _build_service(host: str, port: int, paths: Mapping[str, str], pages: list[str]) -> Any:
    @asynccontextmanager
    async def serve(made: Operator) -> AsyncIterator[None]:
        from webop.app import OperatorApp  # noqa: PLC0415 - slow, as is the next one
        from webop.monitoring.status_report import Reporter  # noqa: PLC0415
        from webop.servers.http.listener import Listener  # noqa: PLC0415

        reporter = Reporter(made)
        page = paths.get("status")
        app = OperatorApp(
            operator=made,
            health_path=paths.get("liveness", "/healthz"),
            metrics_path=paths.get("metrics"),
            page=None if page is None else Page(page, host, reporter.build),
        )
        reporting = running(reporter.recent.run(), name="figures of the last five minutes")
        async with reporting, Listener(app, host, port) as listener:
            if page is not None:
                place = get_reachable_address(host)
                pages.append(f"{build_url('http', place, listener.port, None)}{page}")
            yield

    return serve


class _Running:
    """An operator, with the signals (in the main thread) and the flag that stop it."""

    def __init__(self, made: Operator, flag: Flag | None) -> None:
        self._made = made
        self._flag = flag
        self._stopped = asyncio.Event()
        self._received: list[signal.Signals] = []
        self._stopping_since = 0.0
        self._killer: threading.Timer | None = None

    async def run(self) -> None:
        """Run the operator; at a terminal, log how long it took to stop."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._report_end)
            if threading.current_thread() is threading.main_thread():
                stack.enter_context(listening_to_signals(self._handle_signal))
            else:
                logger.debug(
                    "The operator runs outside of the main thread and gets no signals. To stop it, "
                    "use stop_flag= or cancel its task."
                )
            await self._made.run()

    async def wait_for_stop(self) -> None:
        """Wait for a signal or for the stop flag; the end of this task stops the operator.

        SIGTERM is the signal of a cluster: keep serving webhooks until API servers send reviews
        elsewhere. Ctrl-C and the flag do not wait for that; SIGHUP does.
        """
        async with asyncio.TaskGroup() as group:
            waiters: set[asyncio.Task[Any]] = {group.create_task(self._stopped.wait())}
            if self._flag is not None:
                waiters.add(group.create_task(_wait_for(self._flag)))
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            for waiter in waiters:
                waiter.cancel()
        if self._received and self._received[0] is not signal.SIGINT:
            await self._made.retire()

    def _handle_signal(self, number: signal.Signals) -> None:
        """Stop gracefully; a second signal ends the process."""
        advice = " Press Ctrl-C again to stop at once." if number is signal.SIGINT else ""
        logger.info("Stopping (%s).%s", number.name, advice)
        self._received.append(number)
        self._stopping_since = time.monotonic()
        self._stopped.set()
        # Read it now: a startup handler may have changed it.
        limit = self._made.context.settings.process.ultimate_exiting_timeout
        if limit is not None:
            self._killer = threading.Timer(limit, os.kill, (os.getpid(), signal.SIGKILL))
            self._killer.daemon = True
            self._killer.start()

    def _report_end(self) -> None:
        """Log the end. A process that embeds the operator lives on, unless a thread hangs."""
        settings = self._made.context.settings
        pools = settings.execution, settings.background, settings.admission
        if self._killer is not None and not any(map(count_calls, pools)):
            self._killer.cancel()
        if self._received and find_formatter() is not None:
            seconds = time.monotonic() - self._stopping_since
            logger.info("Stopped after %g s.", round(seconds, 1))


async def _wait_for(flag: Flag) -> None:
    if isinstance(flag, threading.Event):
        while not flag.is_set():  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(_FLAG_POLLING)
    elif isinstance(flag, asyncio.Event):
        await flag.wait()
    else:
        future = flag if isinstance(flag, asyncio.Future) else asyncio.wrap_future(flag)
        await asyncio.wait({future})
        if not future.cancelled():
            future.exception()  # retrieve it: it stops the operator like a result


def _raise_flag(flag: Flag | None) -> None:
    if isinstance(flag, (asyncio.Event, threading.Event)):
        flag.set()
    elif flag is not None and not flag.done():
        flag.set_result(None)


async def _stop_hung(tasks: Collection[asyncio.Task[Any]]) -> None:
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=_HUNG_TIMEOUT)
    for task in pending:
        task.cancel()
    if pending:
        logger.warning("Cancelling %d tasks that still run after the operator's end.", len(pending))
        await asyncio.wait(pending)
