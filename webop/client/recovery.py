"""How a watch is going, and what it does about failures: how long it pauses, where it begins.

Place in the flow: :mod:`webop.client.watch` tells it each failure, and each proof of health.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from typing import Protocol

from webop.backoff import Backoff
from webop.client.failures import Attempt, choose_pause
from webop.errors import (
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

# Seconds. The pauses after failures, each by up to a third longer or shorter: from 0.8 to 30.
_BACKOFFS = (1.2, 2.4, 4.8, 9.6, 19.2, 22.5)
_JITTER = 1 / 3
_BACKOFF_LIMIT = 30.0

# After so many failures in a row of a server that does respond, the resource version itself is
# suspected: after a restore of etcd from a backup, for example, no event ever comes after it.
_DOUBTS_LIMIT = 3

_NO_DOUBT = (
    APIConnectionError,
    APIForbiddenError,
    APITooManyRequestsError,
    APIUnauthorizedError,
    LoginError,
)

# Answers of those between here and the API server, or of one that is not ready.
_AWAY = frozenset({502, 503})


class WatchOptions(Protocol):
    """What a watch needs to know, in seconds; ``settings.watching`` satisfies it. Read live."""

    server_timeout: float | None  # after how long the server is asked to end each stream
    client_timeout: float | None  # after how long the client ends each stream itself
    connect_timeout: float | None  # for the TCP handshake; by default, as for other requests
    reconnect_backoff: float  # the pause between two streams when nothing is wrong
    inactivity_timeout: float | None  # after how much silence the connection is considered dead
    streaming_list: bool  # whether existing objects are asked for by streaming lists, if possible
    managed_fields: bool  # whether ``metadata.managedFields`` are kept in the objects


class State(enum.Enum):
    """What a watch does at the moment."""

    EMPTY = "empty"
    LISTING = "listing"
    WATCHING = "watching"


@dataclasses.dataclass(slots=True)
class WatchStatus:
    """How a watch is doing: written by the watch, read by probes and metrics."""

    state: State = State.EMPTY
    is_connected: bool = False  # its stream is open now; in between and in outages, it is not
    failures: int = 0  # in a row, up to the last event or bookmark (one comes each minute)
    error: str = ""  # the last one of them, in words
    version: str = ""  # the resource version reached; empty until the first listing ends


class Recovery:
    """The memory of the failures of one watch, up to the next proof of health."""

    def __init__(self, attempt: Attempt, options: WatchOptions, status: WatchStatus) -> None:
        self._attempt = attempt
        self._options = options
        self._status = status
        self._doubts = 0
        self._is_gone = False
        self._backoff = Backoff(_BACKOFFS, jitter=_JITTER)
        self.pause = 0.0  # how long to wait now, in seconds

    def heal(self) -> None:
        """Take note that all is well: forget the failures."""
        if self._status.error:
            logger.info("Back to normal: %s.", self._attempt)
        self._is_gone = False
        self._doubts = 0
        self._backoff.reset()
        self._status.failures = 0
        self._status.error = ""

    def fail(self, exc: Exception, duration: float) -> None:
        """Take note of a failure of a stream (after so many seconds) or of a listing."""
        if duration > _BACKOFF_LIMIT and not isinstance(exc, TimeoutError):
            self.heal()  # it was fine in between, although nothing happened
        self.pause = choose_pause(self._backoff, exc, limit=_BACKOFF_LIMIT) or 0.0
        if isinstance(exc, APIGoneError) and not self._is_gone:
            self.pause = self._options.reconnect_backoff  # the server is fine: list again at once
        elif isinstance(exc, APIUnauthorizedError | LoginError) or (
            isinstance(exc, TimeoutError) and duration > _BACKOFF_LIMIT
        ):
            # Without credentials, it is the login that pauses, for all. A silence is long enough
            # by itself. Where no bookmarks come, it only means that nothing happens. A longer
            # pause would only delay the next events.
            self.pause = Backoff(_BACKOFFS, jitter=_JITTER).next() or 0.0
        self._is_gone = self._is_gone or isinstance(exc, APIGoneError)
        is_away = isinstance(exc, APIStatusError) and exc.status in _AWAY
        self._doubts += not is_away and not isinstance(exc, _NO_DOUBT)
        is_lost = isinstance(exc, APIGoneError | APINotFoundError) or self._doubts >= _DOUBTS_LIMIT
        if is_lost or self._status.state is State.LISTING:
            self._status.state = State.EMPTY
            self._doubts = 0
        self._status.failures += 1
        self._log(exc)

    def _log(self, exc: Exception) -> None:
        message = str(exc).rstrip(".")
        if isinstance(exc, TimeoutError):
            silence = self._options.inactivity_timeout
            message = f"Cannot {self._attempt}: the server has been silent for {silence} s"
        elif isinstance(exc, LoginError):
            message = f"Cannot {self._attempt}: no credentials. {exc.kind}"  # probes tell it, too
        how = "continuing" if self._status.state is State.WATCHING else "listing again"
        is_known = isinstance(exc, WebopError | TimeoutError)
        is_usual = isinstance(exc, APIGoneError | TimeoutError | APIConnectionError)
        level = logging.INFO if is_usual and self._status.failures == 1 else logging.WARNING
        if message == self._status.error:
            level = logging.DEBUG
        self._status.error = message
        logger.log(
            level, "%s; %s in %.1f s.", message, how, self.pause, exc_info=None if is_known else exc
        )
