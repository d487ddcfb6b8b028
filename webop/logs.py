"""How log lines look: ``webop.configure`` and ``webop.LogFormat`` (chapter "Configuration")."""

from __future__ import annotations

import contextlib
import enum
import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

_SEVERITIES = ((50, "fatal"), (40, "error"), (30, "warn"), (20, "info"))
_TALKATIVE = ("asyncio", "aiohttp", "httpx", "httpcore")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "k8s_ref"}


class LogFormat(enum.Enum):
    """The kinds of log lines; the values are formats of :mod:`logging`, where there is one."""

    PLAIN = "%(message)s"
    FULL = "[%(asctime)s] %(name)-20.20s [%(levelname)-8.8s] %(message)s"
    JSON = "json"


class TextFormatter(logging.Formatter):
    """Lines of text; messages about objects begin with the object, if asked for (LOG-01, 02)."""

    def __init__(self, fmt: str, *, has_prefix: bool) -> None:
        super().__init__(fmt)
        self._has_prefix = has_prefix

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  as in the base
        """Return the line without the traceback."""
        if self._has_prefix:
            record.message = _build_prefix(record) + record.message
        return super().formatMessage(record)


class JSONFormatter(logging.Formatter):
    """One JSON object a line, with the reference of the object under a key (LOG-03 to 05)."""

    def __init__(self, *, has_prefix: bool, refkey: str | None) -> None:
        super().__init__()
        self._has_prefix = has_prefix
        self._refkey = refkey or "object"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "message": _build_prefix(record) + message if self._has_prefix else message,
            "severity": _detect_severity(record.levelno),
            "timestamp": moment.isoformat(timespec="microseconds"),
        }
        reference = getattr(record, "k8s_ref", None)
        if reference:
            line[self._refkey] = reference
        if record.exc_info:
            line["exc_info"] = self.formatException(record.exc_info)
        line |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        return _dump(line)


def configure(
    debug: bool | None = None,  # noqa: FBT001
    verbose: bool | None = None,  # noqa: FBT001
    quiet: bool | None = None,  # noqa: FBT001
    log_format: LogFormat = LogFormat.FULL,
    log_prefix: bool | None = False,  # noqa: FBT001, FBT002
    log_refkey: str | None = None,
) -> None:
    """Set up logging for a process that runs an operator (LOG-07, LOG-08).

    Args:
        debug: show what asyncio and the HTTP client do, too.
        verbose: show what the framework does.
        quiet: show only warnings and errors.
        log_format: what the lines look like.
        log_prefix: whether messages about objects begin with ``[namespace/name]``.
        log_refkey: the key of the object in JSON lines; "object" by default.
    """
    handler = _OwnHandler()
    if log_format is LogFormat.JSON:
        handler.setFormatter(JSONFormatter(has_prefix=bool(log_prefix), refkey=log_refkey))
    else:
        handler.setFormatter(TextFormatter(log_format.value, has_prefix=bool(log_prefix)))
    root = logging.getLogger()
    for existing in _list_own_handlers():
        root.removeHandler(existing)
    root.addHandler(handler)
    level = logging.DEBUG if debug or verbose else logging.WARNING if quiet else logging.INFO
    root.setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.WARNING)


@contextlib.contextmanager
def preserve() -> Iterator[None]:
    """Undo what :func:`configure` does within the block: for commands run by tests."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, _TALKATIVE)]
    levels = [existing.level for existing in loggers]
    handlers = _list_own_handlers()
    try:
        yield
    finally:
        for added in _list_own_handlers():
            root.removeHandler(added)
        for handler in handlers:
            root.addHandler(handler)
        for existing, level in zip(loggers, levels, strict=True):
            existing.setLevel(level)


def _list_own_handlers() -> list[logging.Handler]:
    return [h for h in logging.getLogger().handlers if isinstance(h, _OwnHandler)]


class _OwnHandler(logging.StreamHandler[Any]):
    """Tells the handler of the last call of :func:`configure` from those of others."""


def _dump(line: dict[str, Any]) -> str:
    """Return the JSON of whatever is logged: a line that is lost says nothing."""
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # long integers, lone surrogates
        return json.dumps(line, default=str, skipkeys=True)


def _build_prefix(record: logging.LogRecord) -> str:
    reference: Mapping[str, Any] | None = getattr(record, "k8s_ref", None)
    if not reference:
        return ""
    namespace, name = reference.get("namespace"), reference.get("name", "")
    return f"[{namespace}/{name}] " if namespace else f"[{name}] "


def _detect_severity(level: int) -> str:
    return next((name for limit, name in _SEVERITIES if level >= limit), "debug")
