"""The status of a watch, and its recovery from failures: how long to pause, where to continue."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
from typing import Protocol

from webop.aio.backoff import Backoff, format_pause
from webop.client.http.failed_requests import Attempt, choose_pause
from webop.client.watch_events import BrokenStreamError
from webop.errors import (
    TRANSIENT_ERRORS,
    APIConnectionError,
    APIForbiddenError,
    APIGoneError,
    APINotFoundError,
    APIStatusError,
    APITooManyRequestsError,
    APIUnauthorizedError,
    LoginError,
    WebopError,
)

logger = logging.getLogger(__name__)

# Seconds. The pauses after failures, each up to a third longer or shorter: from 0.8 to 30.
_BACKOFFS = (1.2, 2.4, 4.8, 9.6, 19.2, 22.5)
_JITTER = 1 / 3
_BACKOFF_LIMIT = 30.0

# After so many failures in a row of a server that responds, the resource version may be the reason:
# after a restore of etcd from a backup, for example, no event ever follows it.
_DOUBTS_LIMIT = 3

_NO_DOUBT = (
    APIConnectionError,
    APIForbiddenError,
    APITooManyRequestsError,
    APIUnauthorizedError,
    LoginError,
)

# Waiting can mend these. Without credentials, the next list waits for others, or fails.
_TRANSIENT = (
    *TRANSIENT_ERRORS,
    APIGoneError,
    APIUnauthorizedError,
    BrokenStreamError,
    TimeoutError,
)

# The statuses of proxies, or of an API server that is not ready.
_AWAY = frozenset({502, 503})


class WatchOptions(Protocol):
    """The settings of a watch, in seconds, such as ``settings.watching``. Changes take effect."""

    server_timeout: float | None = None  # after how long the server should end each stream
    client_timeout: float | None = None  # after how long the client ends each stream itself
    connect_timeout: float | None = None  # for the TCP handshake; by default, as for other requests
    reconnect_backoff: float = 0.1  # the pause between two streams without a failure
    inactivity_timeout: float | None = 70.0  # without data for so long, the connection is dead
    streaming_list: bool = True  # whether to list objects by streaming lists, if possible
    managed_fields: bool = False  # whether ``metadata.managedFields`` are kept in the objects


class UsualOptions(WatchOptions):
    """The defaults, for clients without settings."""


class State(enum.Enum):
    """The state of a watch."""

    EMPTY = "empty"
    LISTING = "listing"
    WATCHING = "watching"


@dataclasses.dataclass(slots=True, eq=False)
class WatchStatus:
    """The status of a watch: written by the watch, read by probes and metrics."""

    state: State = State.EMPTY
    opened_at: float | None = None  # since when the stream is open, by the loop; None without one
    failures: int = 0  # in a row, since the last event or bookmark (one each minute)
    error: str = ""  # the message of the last failure
    version: str = ""  # the resource version reached; empty until the first listing ends
    gives_up: bool = False  # whether errors that waiting cannot mend end the watch
    prefers_pages: bool = False  # whether to read the next list in pages

    @property
    def is_connected(self) -> bool:
        """Whether a stream is open now."""
        return self.opened_at is not None

    def get_age(self) -> float:
        """Return the age of the stream in seconds; 0 if there is none."""
        now = asyncio.get_running_loop().time()
        return 0.0 if self.opened_at is None else now - self.opened_at


class Recovery:
    """The failures of one watch since its last success."""

    def __init__(self, attempt: Attempt, options: WatchOptions, status: WatchStatus) -> None:
        self._attempt = attempt
        self._options = options
        self._status = status
        self._doubts = 0
        self._is_gone = False
        self._backoff = Backoff(_BACKOFFS, jitter=_JITTER)
        self.has_watched = False  # whether the server has accepted a stream after a list

    def is_final(self, exc: Exception) -> bool:
        """Return whether an error ends the watch.

        A permission or a kind that is missing later can come back, as after a restart of the API
        server; the credentials cannot.
        """
        is_mended = self.has_watched or isinstance(exc, _TRANSIENT)
        return self._status.gives_up and (isinstance(exc, LoginError) or not is_mended)

    def heal(self) -> None:
        """Note a success: forget the failures."""
        if self._status.error:
            logger.info("Back to normal: %s.", self._attempt)
        self._is_gone = False
        self._doubts = 0
        self._backoff.reset()
        self._status.failures = 0
        self._status.error = ""

    def fail(self, exc: Exception, duration: float) -> float:
        """Note a failure of a stream (after so many seconds) or of a listing; return the pause."""
        if duration > _BACKOFF_LIMIT and not isinstance(exc, TimeoutError):
            self.heal()  # it worked in between, although there were no events
        pause = choose_pause(self._backoff, exc, limit=_BACKOFF_LIMIT) or 0.0
        if isinstance(exc, APIGoneError) and not self._is_gone:
            pause = self._options.reconnect_backoff  # the server is fine: list again at once
        elif isinstance(exc, APIUnauthorizedError | LoginError) or (
            isinstance(exc, TimeoutError) and duration > _BACKOFF_LIMIT
        ):
            # Without credentials, the login pauses for all requests. The time without data is long
            # enough already; without bookmarks, it only means that there were no events. A longer
            # pause would delay the next events.
            pause = Backoff(_BACKOFFS, jitter=_JITTER).next() or 0.0
        self._is_gone = isinstance(exc, APIGoneError)
        is_away = isinstance(exc, APIStatusError) and exc.status in _AWAY
        self._doubts += not is_away and not isinstance(exc, _NO_DOUBT)
        is_lost = isinstance(exc, APIGoneError | APINotFoundError) or self._doubts >= _DOUBTS_LIMIT
        if is_lost or self._status.state is State.LISTING:
            self._status.state = State.EMPTY
            self._doubts = 0
        self._status.failures += 1
        self._log(exc, pause)
        return pause

    def _log(self, exc: Exception, pause: float) -> None:
        message = str(exc).rstrip(".")
        if isinstance(exc, TimeoutError):
            silence = self._options.inactivity_timeout
            message = f"Cannot {self._attempt}: the server has been silent for {silence} s"
        elif isinstance(exc, LoginError):
            message = f"Cannot {self._attempt}: no credentials. {exc.kind}"  # probes show it, too
        how = "continuing" if self._status.state is State.WATCHING else "listing again"
        is_known = isinstance(exc, WebopError | TimeoutError)
        is_usual = isinstance(exc, APIGoneError | TimeoutError | APIConnectionError)
        level = logging.INFO if is_usual and self._status.failures == 1 else logging.WARNING
        if message == self._status.error:
            level = logging.DEBUG
        self._status.error = message
        logger.log(
            level,
            "%s; %s in %s s.",
            message,
            how,
            format_pause(pause),
            exc_info=None if is_known else exc,
        )
