"""What the operator says about objects: prefixed log messages, and the Kubernetes Events they make.

Handlers get an :class:`ObjectLogger`; messages of a level of ``settings.posting.level`` and above
become Events of the object, beside those of :func:`event`, :func:`info`, :func:`warn` and
:func:`exception` (chapter "Kubernetes events"). Posting is done in the background: it neither
delays nor breaks a handler.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from webop.errors import APIError, LoginError
from webop.objects.body import ObjectReference, build_object_reference
from webop.objects.resources import Resource
from webop.settings import OperatorSettings

if TYPE_CHECKING:
    from webop.client.api import Client

Logger = logging.Logger | logging.LoggerAdapter[Any]

EVENTS = Resource(group="", version="v1", plural="events", kind="Event", namespaced=True)

_MESSAGE_LIMIT = 1024  # core/v1 Event: longer messages are refused
_QUEUE_LIMIT = 10_000

logger = logging.getLogger(__name__)
_objects_logger = logging.getLogger("webop.objects")


class ObjectLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that carries the reference of an object: for the prefix, for JSON, for Events.

    Args:
        body: the object.
        settings: the operator's settings, of which ``posting`` matters.
    """

    is_local = False

    def __init__(self, *, body: Mapping[str, Any], settings: OperatorSettings) -> None:
        super().__init__(_objects_logger, {})
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
        """Log a message, and post it as an Event of the object if it is important enough."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # whose line it is: the caller's
        super().log(level, msg, *args, **kwargs)
        posting = self._settings.posting
        if level >= posting.level and posting.enabled and posting.loggers and not self.is_local:
            text = _format(msg, args) or logging.getLevelName(level)
            _post(self.reference, type=_type_of(level), reason="Logging", message=text)


class LocalObjectLogger(ObjectLogger):
    """The same for messages that are of no interest in the cluster: never posted."""

    is_local = True


class Posted(NamedTuple):
    """An Event on its way."""

    reference: ObjectReference
    type: str
    reason: str
    message: str
    moment: datetime


class Poster:
    """Posts Events in the background: :meth:`put` from anywhere, :meth:`run` as a task.

    Args:
        settings: the operator's settings, of which ``posting`` matters.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._queue: asyncio.Queue[Posted] = asyncio.Queue(_QUEUE_LIMIT)
        self._dropped = 0

    def put(self, item: Posted) -> None:
        """Take an Event in from any thread; drop it if there are too many on their way."""
        if self._loop is None or self._loop.is_closed():
            return  # there is no cluster to post to
        if threading.get_ident() == self._thread:
            self._put(item)
        else:
            self._loop.call_soon_threadsafe(self._put, item)

    async def run(self, client: Client) -> None:
        """Post for ever; failures are logged, and nothing else."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        while True:
            item = await self._queue.get()
            namespace = item.reference.get("namespace") or "default"
            try:
                await client.create(EVENTS, namespace, self._build_event(item, namespace))
            except (APIError, LoginError) as exc:
                logger.warning("Failed to post an event: %s", exc)
            except Exception:
                logger.exception("Failed to post an event: %r", item)

    def _put(self, item: Posted) -> None:
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning("Too many events are waiting to be posted; some are dropped.")

    def _build_event(self, item: Posted, namespace: str) -> dict[str, Any]:
        """Return the Event (Kubernetes API, core/v1 Event)."""
        posting = self.settings.posting
        moment = item.moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        second = item.moment.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "metadata": {"namespace": namespace, "generateName": posting.event_name_prefix},
            "type": item.type,
            "reason": item.reason,
            "message": _cut(item.message),
            "action": "Handle",
            "reportingComponent": posting.reporting_component,
            "reportingInstance": posting.reporting_instance,
            "source": {"component": posting.reporting_component},
            "involvedObject": {"namespace": namespace, **item.reference},
            "eventTime": moment,
            "firstTimestamp": second,
            "lastTimestamp": second,
        }


current_poster: ContextVar[Poster] = ContextVar("current_poster")


def event(objs: Any, *, type: str, reason: str, message: str = "") -> None:  # noqa: A002
    """Post an Event of any type and reason about one object or several (KEV-01, KEV-04)."""
    poster = current_poster.get(None)
    if poster is None or not poster.settings.posting.enabled:
        return
    for obj in _iter_objects(objs):
        reference = build_object_reference(obj)
        _post(reference, type=str(type), reason=str(reason), message=str(message))


def info(objs: Any, *, reason: str, message: str = "") -> None:
    """Post an Event of the type Normal (KEV-02)."""
    _announce(objs, logging.INFO, type="Normal", reason=reason, message=message)


def warn(objs: Any, *, reason: str, message: str = "") -> None:
    """Post an Event of the type Warning (KEV-02)."""
    _announce(objs, logging.WARNING, type="Warning", reason=reason, message=message)


def exception(
    objs: Any, *, reason: str = "", message: str = "", exc: BaseException | None = None
) -> None:
    """Post an Event of the type Error about an exception, the current one by default (KEV-03)."""
    exc = sys.exc_info()[1] if exc is None else exc
    reason = reason or ("" if exc is None else type(exc).__name__)
    text = " ".join(part for part in (message, "" if exc is None else str(exc)) if part)
    _announce(objs, logging.ERROR, type="Error", reason=reason, message=text)


def _announce(
    objs: Any,
    level: int,
    *,
    type: str,  # noqa: A002
    reason: str,
    message: str,
) -> None:
    poster = current_poster.get(None)
    if poster is not None and poster.settings.posting.level <= level:
        event(objs, type=type, reason=reason, message=message)


def _post(reference: ObjectReference, *, type: str, reason: str, message: str) -> None:  # noqa: A002
    poster = current_poster.get(None)
    if poster is None or not reference.get("uid") or _is_about_event(reference):
        return
    poster.put(Posted(reference, type, reason, message, datetime.now(UTC)))


def _is_about_event(reference: ObjectReference) -> bool:
    """Tell whether an Event would be about an Event: these are not posted (KEV-07)."""
    group = reference.get("apiVersion", "").rpartition("/")[0]
    return reference.get("kind") == "Event" and group in ("", "events.k8s.io")


def _iter_objects(objs: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(objs, Mapping):
        # Models of the client library make dicts with names as in Python.
        yield {**objs, "apiVersion": objs["api_version"]} if "api_version" in objs else objs
    elif isinstance(objs, Iterable) and not isinstance(objs, (str, bytes)):
        for obj in objs:
            yield from _iter_objects(obj)
    elif hasattr(objs, "to_dict"):
        yield from _iter_objects(objs.to_dict())
    elif hasattr(objs, "obj"):
        yield objs.obj
    else:
        raise TypeError(f"An event cannot be about {objs!r}: it is not a Kubernetes object.")


def _format(msg: object, args: tuple[object, ...]) -> str:
    """Return the message as :mod:`logging` makes it; a mistake in it is told by the log itself."""
    values: Any = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
    try:
        return str(msg) % values if args else str(msg)
    except (TypeError, ValueError, KeyError):
        return str(msg)


def _type_of(level: int) -> str:
    if level >= logging.ERROR:
        return "Error"
    return "Warning" if level >= logging.WARNING else "Normal"


def _cut(message: str) -> str:
    if len(message) <= _MESSAGE_LIMIT:
        return message
    half = (_MESSAGE_LIMIT - 3) // 2
    return f"{message[:half]}...{message[-half:]}"
