"""What a watch is told, and what it tells about itself. Pure: no I/O.

Used by :mod:`webop.client.watch`; read by probes and metrics.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Protocol


class WatchOptions(Protocol):
    """What a watch needs to know, in seconds; ``settings.watching`` satisfies it. Read live."""

    @property
    def server_timeout(self) -> float | None:
        """After how long the server is asked to end each stream."""

    @property
    def client_timeout(self) -> float | None:
        """After how long the client ends each stream itself."""

    @property
    def connect_timeout(self) -> float | None:
        """The limit for the TCP handshake; by default, as for other requests."""

    @property
    def reconnect_backoff(self) -> float:
        """The pause between two streams when nothing is wrong."""

    @property
    def inactivity_timeout(self) -> float | None:
        """After how much silence the connection is considered dead."""

    @property
    def streaming_list(self) -> bool:
        """Whether existing objects are asked for by streaming lists where there are some."""

    @property
    def managed_fields(self) -> bool:
        """Whether ``metadata.managedFields`` are kept in the objects."""


class State(enum.Enum):
    """What a watch does at the moment."""

    EMPTY = "empty"
    LISTING = "listing"
    WATCHING = "watching"


@dataclasses.dataclass(slots=True)
class WatchStatus:
    """How a watch is doing: written by the watch, read by probes and metrics.

    Attributes:
        state: what it does.
        is_connected: whether its stream is open now. For some moments in between, and in
            outages, it is not.
        failures: how many in a row, up to the last event or bookmark (one comes each minute).
        error: the last one of them, in words; empty when all is well.
        version: the resource version that has been reached; empty until the first listing ends.
    """

    state: State = State.EMPTY
    is_connected: bool = False
    failures: int = 0
    error: str = ""
    version: str = ""
