"""The kinds of log lines: ``webop.LogFormat`` and the formatters."""

from __future__ import annotations

import enum
import json
import logging
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from webop.logs import review_context
from webop.logs.sanitizing import escape
from webop.telemetry.tracing import find_trace_ids

_SEVERITIES = {5: "fatal", 4: "error", 3: "warn", 2: "info"}  # by tens of levels
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    *("message", "asctime", "k8s_event", "k8s_reason", "k8s_ref", "k8s_request")
}


class LogFormat(enum.Enum):
    """The form of log lines: ``webop run --log-format``, or :func:`webop.configure`."""

    PLAIN = "%(message)s"
    """Only the messages."""
    FULL = "[%(asctime)s] %(name)-20s [%(levelname)-8.8s] %(message)s"
    """With the time, the logger and the level."""
    JSON = "json"
    """One JSON object on each line."""


class TextFormatter(logging.Formatter):
    """Lines of text; with what they are about in front, if asked for.

    Whatever a message holds, it is one line. In the traceback that follows, the further lines of an
    exception's message are indented: they cannot pass for log lines.
    """

    def __init__(self, fmt: str, *, has_prefix: bool) -> None:
        super().__init__(fmt)
        self._line = fmt
        self._has_prefix = has_prefix
        self._has_time = self.usesTime()
        self._second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and what belongs to it."""
        record.message = record.getMessage().rstrip("\r\n")  # uvicorn's end with a line break
        line = self.build_line(record)
        trace = _format_exception(*record.exc_info[1:]) if record.exc_info else record.exc_text
        for text in (trace, record.stack_info):
            if text:
                line += "\n" + escape(text, keep="\n")
        return line

    def build_line(self, record: logging.LogRecord) -> str:
        """Return the line without the traceback."""
        if self._has_time:
            record.asctime = self.formatTime(record)
        if self._has_prefix:
            record.message = build_prefix(record) + record.message
        return escape(self._line % vars(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Return the time as the base does, but format each second only once."""
        number, text = self._second
        if number != int(record.created):
            number = int(record.created)
            text = time.strftime(datefmt or self.default_time_format, self.converter(number))
            self._second = number, text
        return f"{text},{int(record.msecs):03d}"


class JSONFormatter(logging.Formatter):
    """One JSON object a line, with what it is about under separate keys.

    Objects are under ``refkey``, and their kind also under "kind"; the current handler, if there is
    one, under "handler"; reviews under "request"; the current span of a trace under "trace_id" and
    "span_id".
    """

    def __init__(self, *, has_prefix: bool, refkey: str | None) -> None:
        super().__init__()
        self._has_prefix = has_prefix
        self._refkey = refkey or "object"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        moment, level = datetime.fromtimestamp(record.created, UTC), min(record.levelno, 50) // 10
        line: dict[str, Any] = {
            "message": build_prefix(record) + message if self._has_prefix else message,
            "severity": _SEVERITIES.get(level, "debug"),
            "timestamp": moment.isoformat(timespec="microseconds"),
            "logger": record.name,
        }
        if (call := review_context.call_of_the_moment.get(None)) is not None:
            line["handler"] = call.handler.id
        reference = getattr(record, "k8s_ref", None)
        if reference:
            line["kind"] = reference.get("kind")
            line[self._refkey] = reference
        request = review_context.find_request(record)
        if request is not None:
            line["request"] = request
        line |= find_trace_ids()
        if record.exc_info:
            line["exc_info"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack_info"] = record.stack_info
        if not vars(record).keys() <= _STANDARD:
            line |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        text = _dump(line)  # JSON does not escape DEL, C1 and direction marks
        return text if text.isascii() and "\x7f" not in text else escape(text)


def _format_exception(exc: Any, frames: Any) -> str:
    """Return the traceback, with the messages of all its exceptions kept in their places."""
    whole = traceback.TracebackException(type(exc), exc, frames)
    pending = [whole]
    while pending:
        part = pending.pop()
        part._str = _indent(part._str)  # type: ignore[attr-defined]  # noqa: SLF001
        part.__notes__ = [_indent(note) for note in part.__notes__ or ()]
        if hasattr(part, "msg"):  # a SyntaxError, of ast.literal_eval() for example
            part.msg = _indent(part.msg)
            part.filename = escape(part.filename or "<string>")
        for frame in part.stack:
            frame.filename = escape(frame.filename)
        following = (part.__cause__, part.__context__, *(part.exceptions or ()))
        pending += [each for each in following if each is not None]
    return "".join(whole.format()).rstrip("\n")


def _indent(text: str) -> str:
    return str(text).replace("\n", "\n    ")


def _dump(line: dict[str, Any]) -> str:
    """Return the JSON of a line, whatever its values are: no line may be lost."""
    try:
        return orjson.dumps(line, default=_describe, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # long integers, lone surrogates, circles
        items = (f"{json.dumps(str(key))}:{_dump_value(value)}" for key, value in line.items())
        return "{" + ",".join(items) + "}"


def _dump_value(value: Any) -> str:
    try:
        return json.dumps(value, default=_describe, skipkeys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_describe(value))


def _describe(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  whatever the user's objects do
        return f"<{type(value).__name__}>"


def build_prefix(record: logging.LogRecord) -> str:
    """Return the object and the review that a message is about, if there are any."""
    prefix = ""
    reference: Mapping[str, Any] | None = getattr(record, "k8s_ref", None)
    if reference:
        namespace, name = reference.get("namespace"), reference.get("name", "")
        place = f"{namespace}/{name}" if namespace else name
        prefix = f"[{reference['kind']} {place}] " if "kind" in reference else f"[{place}] "
    request = review_context.find_request(record)
    return prefix if request is None else prefix + review_context.build_prefix(request)
