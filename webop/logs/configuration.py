"""Logging of a process that runs an operator: ``webop.configure``."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from webop.logs.formats import JSONFormatter, LogFormat, TextFormatter
from webop.logs.terminal import TerminalFormatter, accepts_colours

_TALKATIVE = ("asyncio", "aiohttp", "httpx", "httpcore", "uvicorn")


def configure(
    debug: bool | None = None,  # noqa: FBT001
    verbose: bool | None = None,  # noqa: FBT001
    quiet: bool | None = None,  # noqa: FBT001
    log_format: LogFormat = LogFormat.FULL,
    log_prefix: bool | None = False,  # noqa: FBT001, FBT002
    log_refkey: str | None = None,
) -> None:
    """Set up logging as ``webop run`` does, for a program that calls :func:`webop.run`.

    Args:
        debug: show what asyncio and the HTTP client do, too.
        verbose: show what the framework does.
        quiet: show only warnings and errors.
        log_format: what the lines look like.
        log_prefix: whether messages about objects begin with ``[Kind namespace/name]``, and those
            of reviews with ``[the first part of the uid]``.
        log_refkey: the key of the object in JSON lines; "object" by default.
    """
    formatter: logging.Formatter
    if log_format is LogFormat.JSON:
        formatter = JSONFormatter(has_prefix=bool(log_prefix), refkey=log_refkey)
    else:
        formatter = TextFormatter(log_format.value, has_prefix=bool(log_prefix))
    _use(formatter)
    level = logging.DEBUG if debug or verbose else logging.WARNING if quiet else logging.INFO
    logging.getLogger().setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.WARNING)
    if threading.current_thread() is threading.main_thread():  # else they belong to a test
        logging.captureWarnings(capture=True)


def configure_terminal(*, has_prefix: bool) -> None:
    """Log as for a person at a terminal, with the levels of :func:`configure`, called before."""
    has_colours = accepts_colours(sys.stderr)
    _use(TerminalFormatter(has_prefix=has_prefix, has_colours=has_colours))


def _use(formatter: logging.Formatter) -> None:
    handler = _OwnHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for existing in _list_own_handlers():
        root.removeHandler(existing)
    root.addHandler(handler)


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
