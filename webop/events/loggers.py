"""Loggers of objects, and the Kubernetes Events that their messages become.

Handlers get an :class:`ObjectLogger`. Its messages from ``settings.posting.level`` on become Events
of the object; :func:`event`, :func:`info`, :func:`warn` and :func:`exception` post others (chapter
"Kubernetes events"). The operator posts in the background: this never delays or breaks a handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from webop.aio.backoff import Backoff
from webop.client.http.failed_requests import choose_pause
from webop.errors import (
    TRANSIENT_ERRORS,
    APIConflictError,
    APIError,
    APIStatusError,
    LoginError,
)
from webop.events.event_queue import CountedEvent, EventQueue, Loss, Message
from webop.logs.sanitizing import escape
from webop.objects.body import ObjectReference, build_object_reference
from webop.objects.fields import is_mapping
from webop.objects.resources import Resource
from webop.settings.groups import OperatorSettings, PostingSettings
from webop.settings.values import check_delays

if TYPE_CHECKING:
    from webop.client.api import Client, ObjectOptions

Logger = logging.Logger | logging.LoggerAdapter[Any]
"""The type of the argument ``logger`` of handlers."""

EVENTS = Resource(group="", version="v1", plural="events", kind="Event", namespaced=True)

_MESSAGE_LIMIT = 1024  # core/v1 Event: longer messages are refused
# The retries are decided here, not by settings.networking.
_OPTIONS: ObjectOptions = {"timeout": 30.0, "is_retried": False}
_PAUSES = (1, 2, 4, 8, 16, 30)  # seconds, between the attempts to send one Event
_MAX_RETRIES = 100  # of one Event, if the pauses are chosen by the user

_VERSION_OF_MODEL = re.compile(r"^[A-Za-z]*?V\d+((alpha|beta)\d+)?(?=[A-Z])")

logger = logging.getLogger(__name__)
_LOGGING = logging.LoggerAdapter.info.__code__.co_filename
_objects_logger = logging.getLogger("webop.objects")


class ObjectLogger(logging.LoggerAdapter[logging.Logger]):
    """The argument ``logger`` of handlers: a logger whose lines name the object.

    Lines from the level ``settings.posting.level`` on also become Events of the object. The text of
    the Event can be another one: ``logger.info("…", extra={"k8s_event": "…"})``. Its reason is
    "Logging", or the ``k8s_reason`` in ``extra``.
    """

    is_local = False

    def __init__(self, *, body: Mapping[str, Any], settings: OperatorSettings) -> None:
        self.logger, self.extra = _objects_logger, {}  # all that the base class would do
        self._body = body
        self._settings = settings
        self._reference: ObjectReference | None = None

    @property
    def reference(self) -> ObjectReference:
        """The reference of the object, as Events need it."""
        if self._reference is None:
            self._reference = build_object_reference(self._body)
        return self._reference

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the reference to the record; extras of the call are kept."""
        kwargs["extra"] = {"k8s_ref": self.reference, **(kwargs.get("extra") or {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message, and post it as an Event of the object if its level is high enough.

        Records of messages without options are made here, because that is much faster.
        """
        target = self.logger
        if target.isEnabledFor(level):
            text, options = self.process(msg, kwargs)
            if len(options) > ("extra" in options):
                options["stacklevel"] = options.get("stacklevel", 1) + 1  # whose line: the caller's
                target.log(level, text, *args, **options)
            else:
                frame = sys._getframe(1)  # noqa: SLF001  as logging itself does
                while frame.f_code.co_filename == _LOGGING and frame.f_back is not None:
                    frame = frame.f_back  # out of info(), warning() and so on
                code, extra = frame.f_code, options.get("extra")
                place = code.co_filename, frame.f_lineno
                record = target.makeRecord(
                    target.name, level, *place, text, args, None, code.co_name, extra
                )
                target.handle(record)
        if self.is_local:
            return
        posting = self._settings.posting
        if level < posting.level or not (posting.enabled and posting.loggers):
            return
        if (poster := current_poster.get(None)) is not None:
            extra = kwargs.get("extra") or {}
            text = extra.get("k8s_event") or _format(msg, args) or logging.getLevelName(level)
            kind = "Warning" if level >= logging.WARNING else "Normal"
            reason = extra.get("k8s_reason") or "Logging"
            _post(poster, self.reference, kind, str(reason), str(text))


class LocalObjectLogger(ObjectLogger):
    """An object logger whose messages are never posted."""

    is_local = True


class Poster:
    """Posts Events in the background: :meth:`put` from anywhere, :meth:`run` as a task.

    Flow: :meth:`put` adds a message to the queue, in the calling thread; :meth:`run` sends the
    Events of the queue, one request at a time.

    Guarantees:
        - :meth:`put` never waits and never fails because of the cluster.
        - Events are sent in the order of their messages, except those that are retried after their
          own pauses.
        - Once a minute, one log line counts the messages that were not posted.

    Caveats:
        Events that still wait when the operator stops are not posted.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self._queue = EventQueue(settings.posting, time.monotonic())
        self._losses = self._queue.losses
        self._lock = threading.Lock()  # of the queue, its losses and the flag below
        self._is_idle = False
        self._backoff = Backoff(_PAUSES, is_endless=False)  # one Event is sent at a time
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, message: Message) -> None:
        """Accept a message from any thread."""
        loop = self._loop
        if loop is None:
            return  # there is no cluster to post to
        with self._lock:
            self._queue.add(message, time.monotonic())
            was_idle, self._is_idle = self._is_idle, False
        if was_idle:
            with contextlib.suppress(RuntimeError):  # the loop is closed, but threads are alive
                loop.call_soon_threadsafe(self._wake.set)

    async def run(self, client: Client) -> None:
        """Post until cancelled; log failures."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._report()
                counted, pause = self._get()
                if counted is not None:
                    await self._send(client, counted)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            self._loop = None
            self._report(is_last=True)

    def _get(self) -> tuple[CountedEvent | None, float | None]:
        """Return the Event to send, and the seconds until an Event or a report is due."""
        now = time.monotonic()
        with self._lock:
            counted = self._queue.get(now)
            pause = self._queue.compute_pause(now)
            self._is_idle = pause is None
            self._wake.clear()
            pauses = (pause, self._losses.compute_pause(now))
        return counted, min((each for each in pauses if each is not None), default=None)

    async def _send(self, client: Client, counted: CountedEvent) -> None:
        """Send an Event as it is now; pause if the API server cannot accept it."""
        backoff, loss = counted.message.backoff or self._backoff, None
        try:
            await self._perform(client, counted)
        except (*TRANSIENT_ERRORS, LoginError) as exc:
            pause = choose_pause(backoff, exc, limit=_PAUSES[-1])
            if pause is not None:
                if backoff is self._backoff:
                    await asyncio.sleep(pause)
                else:  # nobody else waits for pauses that a user has chosen
                    with self._lock:
                        self._queue.postpone()
                    asyncio.get_running_loop().call_later(pause, self._resume, counted)
                return
            loss, failure = Loss.FAILURE, str(exc)
        except APIError as exc:
            is_terminating = _is_about_terminating_namespace(exc)
            loss, failure = Loss.NAMESPACE if is_terminating else Loss.FAILURE, str(exc)
        except Exception as exc:
            logger.debug("Failed to post an event: %r", counted.message, exc_info=True)
            loss, failure = Loss.FAILURE, repr(exc)
        backoff.reset()
        with self._lock:
            self._queue.done(counted)
            if loss is not None:
                self._losses.note(loss, time.monotonic(), failure)

    def _resume(self, counted: CountedEvent) -> None:
        with self._lock:
            self._queue.resume(counted)
        self._wake.set()

    async def _perform(self, client: Client, counted: CountedEvent) -> None:
        namespace = _get_namespace(counted)
        # Events do not live long in a cluster. And a request whose response was lost can have made
        # this one, with an older count: its name is chosen here, so there is no second one.
        if counted.is_posted and await self._update(client, counted):
            return
        counted.name = counted.name or f"{self.settings.posting.event_name_prefix}{token_hex(8)}"
        event = build_event(counted, self.settings.posting)
        try:
            await client.create(EVENTS, namespace, event, **_OPTIONS)
        except APIConflictError:
            await self._update(client, counted)
        counted.is_posted = True

    async def _update(self, client: Client, counted: CountedEvent) -> bool:
        """Update an Event in the cluster; return whether it is there."""
        namespace, update = _get_namespace(counted), build_update(counted)
        return await client.patch(EVENTS, namespace, counted.name, update, **_OPTIONS) is not None

    def _report(self, *, is_last: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            is_due = is_last or self._losses.compute_pause(now) == 0
            level = logging.WARNING if self._losses.is_alarming else logging.INFO
            text = self._losses.pop_report(now) if is_due else ""
        if text:
            logger.log(level, "%s", text)


current_poster: ContextVar[Poster | None] = ContextVar("current_poster", default=None)


Delays = float | Iterable[float] | None


def event(
    objs: Any,
    *,
    type: str,  # noqa: A002
    reason: str,
    message: str = "",
    backoffs: Delays = None,
) -> None:
    """Post an Event of any type and reason about one object or several.

    It returns at once; Events are posted in the background. Use ``webop.info`` and ``webop.warn``
    for the usual types::

        webop.event(body, type="Normal", reason="Paused", message="By an annotation.")

    Args:
        objs: a body, a dict, an object of pykube or of the Kubernetes client; or several of them.
        type: such as Normal or Warning.
        reason: a word for programs.
        message: a sentence for people.
        backoffs: seconds between the attempts if the API server cannot accept it: one retry for
            each item, 100 at most. Other Events do not wait for these pauses.

    Raises:
        ValueError: the backoffs are not seconds.
    """
    poster = current_poster.get(None)
    if poster is None or not poster.settings.posting.enabled:
        return
    delays: Any = backoffs
    if isinstance(backoffs, Iterable) and not isinstance(backoffs, (str, bytes)):
        delays = list(itertools.islice(backoffs, _MAX_RETRIES))
    if delays is not None:
        check_delays(delays)
    for obj in _iter_objects(objs):
        backoff = None if delays is None else Backoff(delays, is_endless=False)
        reference = build_object_reference(obj)
        _post(poster, reference, str(type), str(reason), str(message), backoff)


def info(objs: Any, *, reason: str, message: str = "", backoffs: Delays = None) -> None:
    """Post an Event of the type Normal, if ``settings.posting.level`` is INFO or less.

    ::

        webop.info(body, reason="Provisioned", message="The database is there.")

    The arguments are those of :func:`event`.
    """
    _announce(objs, logging.INFO, type="Normal", reason=reason, message=message, backoffs=backoffs)


def warn(objs: Any, *, reason: str, message: str = "", backoffs: Delays = None) -> None:
    """Post an Event of the type Warning, if ``settings.posting.level`` is WARNING or less.

    The arguments are those of :func:`event`.
    """
    level = logging.WARNING
    _announce(objs, level, type="Warning", reason=reason, message=message, backoffs=backoffs)


def exception(
    objs: Any,
    *,
    reason: str = "",
    message: str = "",
    exc: BaseException | None = None,
    backoffs: Delays = None,
) -> None:
    """Post an Event of the type Error about an exception, by default the one being handled.

    ::

        except ConnectionError:
            webop.exception(body, reason="Unreachable")

    The reason is by default the class of the exception; the message is put before its text.
    """
    exc = sys.exc_info()[1] if exc is None else exc
    reason = reason or ("" if exc is None else type(exc).__name__)
    text = " ".join(part for part in (message, "" if exc is None else str(exc)) if part)
    level = logging.ERROR
    _announce(objs, level, type="Error", reason=reason, message=text, backoffs=backoffs)


def _announce(objs: Any, level: int, **options: Any) -> None:
    poster = current_poster.get(None)
    if poster is not None and poster.settings.posting.level <= level:
        event(objs, **options)


def _post(
    poster: Poster,
    reference: ObjectReference,
    kind: str,
    reason: str,
    text: str,
    backoff: Backoff | None = None,
) -> None:
    if reference.get("kind") == "Event":  # Events are not about Events
        group = reference.get("apiVersion", "").rpartition("/")[0]
        if group in ("", "events.k8s.io"):
            return
    if reference.get("uid"):
        poster.put(Message(reference, kind, reason, _cut(text), time.time(), backoff))


def _iter_objects(objs: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(objs, Mapping):
        # Models of the client library make dicts with names as in Python.
        yield {**objs, "apiVersion": objs["api_version"]} if "api_version" in objs else objs
    elif isinstance(getattr(objs, "obj", None), Mapping):
        # Of pykube, where the items of lists come without apiVersion and kind.
        yield {"apiVersion": objs.version, "kind": objs.kind, **objs.obj}
    elif hasattr(objs, "metadata"):
        yield _read_model(objs)
    elif isinstance(objs, Iterable) and not isinstance(objs, (str, bytes)):
        for obj in objs:
            yield from _iter_objects(obj)
    else:
        raise TypeError(f"Events must be about Kubernetes objects, got {objs!r}.")


def _read_model(obj: Any) -> Mapping[str, Any]:
    """Return what an Event needs of an object with attributes, such as V1Pod of ``kubernetes``."""
    version = getattr(obj, "api_version", None) or getattr(obj, "apiVersion", None)
    # Items of lists have no kind; the classes are V1Pod, CoreV1Event and so on.
    kind = getattr(obj, "kind", None) or _VERSION_OF_MODEL.sub("", type(obj).__name__)
    meta = obj.metadata
    if meta is not None and not isinstance(meta, Mapping):
        meta = {name: getattr(meta, name, None) for name in ("name", "namespace", "uid")}
    return {"apiVersion": version, "kind": kind, "metadata": meta}


def _format(msg: object, args: tuple[object, ...]) -> str:
    """Return the message as :mod:`logging` makes it; the log itself reports mistakes in it."""
    values: Any = args[0] if len(args) == 1 and is_mapping(args[0]) and args[0] else args
    try:
        return str(msg) % values if args else str(msg)
    except (TypeError, ValueError, KeyError):
        return str(msg)


def build_event(counted: CountedEvent, settings: PostingSettings) -> dict[str, Any]:
    """Return a new Event (Kubernetes API, core/v1 Event)."""
    namespace, message = _get_namespace(counted), counted.message
    return {
        "metadata": {"namespace": namespace, "name": counted.name},
        "type": message.type,
        "reason": message.reason,
        "message": message.text,
        "action": "Handle",
        "count": counted.count,
        "reportingComponent": settings.reporting_component,
        "reportingInstance": settings.reporting_instance,
        "source": {"component": settings.reporting_component},
        "involvedObject": {"namespace": namespace, **message.reference},
        "eventTime": _format_moment(counted.first, "microseconds"),
        "firstTimestamp": _format_moment(counted.first, "seconds"),
        "lastTimestamp": _format_moment(message.moment, "seconds"),
    }


def build_update(counted: CountedEvent) -> dict[str, Any]:
    """Return the merge patch for an Event that stands for more messages than before."""
    moment = _format_moment(counted.message.moment, "seconds")
    return {"count": counted.count, "lastTimestamp": moment}


def _cut(text: str) -> str:
    """Return a text as Events can have it; of a long one, the beginning and the end."""
    text = escape(text, keep="\n\t")
    if len(text) <= _MESSAGE_LIMIT:
        return text
    half = _MESSAGE_LIMIT // 2
    return f"{text[: half - 1]}...{text[2 - half :]}"


def _get_namespace(counted: CountedEvent) -> str:
    return counted.message.reference.get("namespace") or "default"


def _format_moment(moment: float, precision: str) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec=precision)[:-6] + "Z"


def _is_about_terminating_namespace(exc: Exception) -> bool:
    """Return whether an Event is rejected because its namespace is deleted or being deleted."""
    if not isinstance(exc, APIStatusError):
        return False
    causes = exc.details.get("causes")
    reasons = [cause.get("reason") for cause in causes] if isinstance(causes, list) else []
    is_gone = exc.status == 404 and exc.details.get("kind") == "namespaces"
    return is_gone or "NamespaceTerminating" in reasons
