"""Accepting connections on listening sockets, and closing these without losing a connection.

asyncio's server closes a listening socket with what is in its queue: clients that are connected
already, and have sent their requests, are reset. Here, the queue is emptied first.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import socket
import struct
import sys
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_BATCH = 100  # connections, then others have their turn
_PAUSE = 1.0  # seconds, when there are no more files or no memory for connections
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_CONNECTING_SECONDS = 0.05  # for clients to complete their side of a new connection

# A filter for packets to a listening socket, in the code of linux/filter.h: drop those that ask
# for a new connection, i.e. have SYN but not ACK among their TCP flags.
_SO_ATTACH_FILTER = 26
_DROP_SYN = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in [
        (0x30, 0, 0, 13),  # load the byte with the flags
        (0x54, 0, 0, 0x12),  # leave SYN and ACK
        (0x15, 0, 1, 0x02),  # only SYN?
        (0x06, 0, 0, 0),  # then drop it
        (0x06, 0, 0, 0xFFFFFFFF),  # else take it as a whole
    ]
)


class Acceptor:
    """Accepts connections on several sockets.

    Args:
        sockets: the listening sockets; owned and closed by this object.
        serve: is called with each new connection, which is non-blocking.
    """

    def __init__(
        self, sockets: Sequence[socket.socket], serve: Callable[[socket.socket], None]
    ) -> None:
        self._sockets = sockets
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Begin to accept."""
        for sock in self._sockets:
            sock.setblocking(False)  # noqa: FBT003 - the signature of the standard library
            self._loop.add_reader(sock, self._accept, sock)

    async def close(self) -> None:
        """Stop listening; serve what is connected already, or is just connecting."""
        try:
            are_refused = [_refuse_new(sock) for sock in self._sockets]
            if all(are_refused):
                await asyncio.sleep(_CONNECTING_SECONDS)
        finally:
            for sock in self._sockets:
                self._loop.remove_reader(sock)
                if sock in self._pauses:
                    self._pauses.pop(sock).cancel()
                while self._accept_one(sock):
                    pass
                sock.close()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_BATCH):
            if not self._accept_one(sock):
                return

    def _accept_one(self, sock: socket.socket) -> bool:
        """Accept a connection; tell whether there may be more of them."""
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:  # that one has gone already
            return True
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            logger.error("Connections cannot be accepted: %s.", error.strerror)  # noqa: TRY400
            self._pause(sock)
            return False
        connection.setblocking(False)  # noqa: FBT003 - the signature of the standard library
        self._serve(connection)
        return True

    def _pause(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        self._pauses[sock] = self._loop.call_later(
            _PAUSE, self._loop.add_reader, sock, self._accept, sock
        )


def _refuse_new(sock: socket.socket) -> bool:
    """Leave no moment between the last accepted connection and the close of the socket.

    Attempts to connect are not answered any more, those that are answered can be completed.
    Clients repeat the former by themselves, and meet the closed port, or someone else there.

    Returns:
        Whether it is so: only on Linux.
    """
    if sys.platform != "linux":
        return False
    code = ctypes.create_string_buffer(_DROP_SYN)
    program = struct.pack("HP", len(_DROP_SYN) // 8, ctypes.addressof(code))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True
