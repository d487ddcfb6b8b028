"""Logs of containers: lines that the API server gets from the kubelet of the node."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, TypedDict

from webop.aio.backoff import Backoff
from webop.client.http.failed_requests import (
    build_connection_error,
    choose_pause,
    parse_attempt,
)
from webop.client.http.streams import StreamLimits
from webop.errors import TRANSIENT_ERRORS, APIUnauthorizedError

if TYPE_CHECKING:
    from webop.client.api import Client


class LogOptions(TypedDict, total=False):
    """Which lines of which log are read (Kubernetes API, core/v1 PodLogOptions)."""

    container: str
    """The name of the container, if the pod has several"""
    follow: bool
    """Whether to wait for new lines until the container ends"""
    since: float | dt.timedelta | dt.datetime
    """Lines of the last so many seconds, of a period, or since a time with a time zone"""
    tail: int
    """So many lines from the end"""
    previous: bool
    """Whether to read the log of the container before its last restart"""


async def read_log(
    client: Client, locate: Callable[[], Awaitable[str]], options: LogOptions, timeout: float
) -> AsyncGenerator[str, None]:
    """Yield the lines of a log.

    Errors before the first line are retried as those of other requests. The timeout is how long the
    server may be silent, in seconds. A container that is followed may be silent for any time, even
    before the first line.
    """
    path, has_begun = await locate(), False
    backoff = Backoff(client.options.error_backoffs, is_endless=False)
    silence = None if options.get("follow") else timeout
    limits = StreamLimits(client.options.connect_timeout, silence=silence)
    while True:
        try:
            async with client.stream(path, _build_query(options), limits=limits) as batches:
                async for lines in batches:
                    for line in lines:
                        has_begun = True
                        yield line.decode("utf-8", "replace")
        except (*TRANSIENT_ERRORS, APIUnauthorizedError, TimeoutError) as exc:
            pause = None if has_begun else choose_pause(backoff, exc)
            if pause is None and isinstance(exc, TimeoutError):
                raise build_connection_error(parse_attempt("GET", path), exc) from exc
            if pause is None:
                raise
        else:
            return
        await asyncio.sleep(pause)


def _build_query(options: LogOptions) -> dict[str, str]:
    since = options.get("since")
    query: dict[str, object] = {
        "container": options.get("container"),
        "follow": "true" if options.get("follow") else None,
        "previous": "true" if options.get("previous") else None,
        "tailLines": options.get("tail"),
    }
    if isinstance(since, dt.datetime):
        if since.tzinfo is None:
            raise ValueError(f"since= needs a time zone, got {since!r}.")
        query["sinceTime"] = since.isoformat()
    elif since is not None:
        seconds = since.total_seconds() if isinstance(since, dt.timedelta) else since
        query["sinceSeconds"] = math.ceil(seconds)
    return {name: str(value) for name, value in query.items() if value is not None}
