"""The changes of objects that happen while a long list of them is read.

Place in the flow: beside the listing of :mod:`webop.client.watch`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from webop.client.watch_events import CHANGES, get_uid, parse_event, parse_number, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from webop.client.http.failed_requests import Attempt
    from webop.client.http.streams import LineStream
    from webop.client.watch_events import WatchEvent

logger = logging.getLogger(__name__)

_READ_AHEAD = 100  # events


class EarlyChanges:
    """A second stream with the changes, because a list delays the changes of its objects.

    A streaming list sends them after its last object; with pages, the watch starts after the last
    page. With 100 000 objects, that takes 6 s. The list and the stream after it must not repeat the
    changes of this stream. If this stream fails, the changes come after the list. So do the changes
    in the first milliseconds of a streaming list, because it sends its version only at the end.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[WatchEvent] = asyncio.Queue(_READ_AHEAD)
        self._task: asyncio.Task[None] | None = None
        self._versions: dict[str, int] = {}

    def begin(self, opening: AbstractAsyncContextManager[LineStream], attempt: Attempt) -> None:
        """Read the changes of a stream in the background."""
        self._task = asyncio.create_task(self._read(opening, attempt), name=f"early: {attempt}")

    def stop(self) -> None:
        """End the stream; its changes stay known."""
        if self._task is not None:
            self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()

    async def close(self) -> None:
        """End the stream, and wait until its connection is closed."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task = None

    def forget_until(self, version: str | None = None) -> None:
        """Forget the changes if a stream has reached this version; None means always."""
        if self._versions and (
            version is None or parse_number(version) >= max(self._versions.values())
        ):
            self._versions.clear()

    def take(self) -> Iterator[WatchEvent]:
        """Yield the changes that have arrived."""
        while not self._queue.empty():
            event = self._queue.get_nowait()
            raw = event[1]
            self._versions[get_uid(raw)] = parse_version(raw)
            yield event

    def has_brought(self, raw: dict[str, Any]) -> bool:
        """Return whether this state of an object, or a newer one, was yielded."""
        if not self._versions:
            return False
        return 0 < parse_version(raw) <= self._versions.get(get_uid(raw), 0)

    async def _read(
        self, opening: AbstractAsyncContextManager[LineStream], attempt: Attempt
    ) -> None:
        try:
            async with opening as stream:
                async for lines in stream:
                    for line in lines:
                        kind, raw, version = await parse_event(line, attempt)
                        if kind not in CHANGES:
                            continue
                        if not parse_number(version):
                            return  # without numbers, older states are not recognizable
                        await self._queue.put((kind, raw))
        except Exception as exc:  # noqa: BLE001  the same changes come after the list
            logger.debug("Changes come only after the list: %s", exc)
