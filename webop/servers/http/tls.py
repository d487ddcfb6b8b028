"""TLS between a socket and a protocol, for connections that must end without a reset.

asyncio's own TLS closes a connection as a whole: a client that is sending at that moment is reset.
Here, the end of our side is told first (``close_notify`` and FIN), what comes after that is read
and dropped, and the socket is closed when the client has closed its side. It is also cheaper:
one object per connection, one shared buffer, one system call for each read and write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

logger = logging.getLogger(__name__)

#: The bytes that are taken from a client after our side is closed; more means that it ignores it.
MAX_DROPPED = 64 * 1024 * 1024

_CHUNK = 64 * 1024
_HANDSHAKE_SECONDS = 10.0
_SHUT = (ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLError)


class SecureTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """A server's side of a TLS connection: the protocol of a socket, the transport of another one.

    Flow: the handshake, within 10 seconds; then the inner protocol is made and gets the decrypted
    data until either side closes.

    Args:
        context: the TLS context, as it is at this moment.
        make_protocol: makes the inner protocol after the handshake.
        handshakes: where it is for as long as the handshake takes.
        buffer: what the socket is read into. Nothing stays there: all connections of an event
            loop may share it.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        handshakes: set[SecureTransport],
        buffer: memoryview,
    ) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make_protocol = make_protocol
        self._handshakes = handshakes
        self._buffer = buffer
        self._protocol: asyncio.Protocol | None = None
        self._socket: asyncio.Transport
        self._timer: asyncio.TimerHandle
        self._is_reading = True
        self._dropped = 0  # bytes
        self._is_shut = False  # our side; nothing is read or written any more

    # The side of the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # Not asserted: the transports of uvloop are of no class of asyncio.
        self._socket = cast("asyncio.Transport", transport)
        self._handshakes.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_HANDSHAKE_SECONDS, self._socket.abort)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - it is asyncio's
        """Return where to put what comes next."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what has come."""
        if self._is_shut:
            self._dropped += nbytes
            if self._dropped > MAX_DROPPED:
                self._socket.abort()
            return
        self._incoming.write(self._buffer[:nbytes])
        if self._protocol is not None or self._shake_hands():
            self._read()

    def eof_received(self) -> bool | None:
        """Hear that the client has closed its side."""
        return False if self._protocol is None or self._is_shut else self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._timer.cancel()
        self._handshakes.discard(self)
        self._is_shut = True
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
            self._protocol = None  # they refer to each other

    def pause_writing(self) -> None:
        """Hear that the client is slow."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Hear that the client has caught up."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    # The side of the inner protocol.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt and send."""
        if self._is_shut or not data:
            return
        try:
            done = self._tls.write(data)
            while done < len(data):
                done += self._tls.write(memoryview(data)[done:])
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._flush()

    def can_write_eof(self) -> bool:
        """Tell that the own side can be closed alone."""
        return True

    def write_eof(self) -> None:
        """Close the own side; drop what the client sends from now on."""
        if self._is_shut:
            return
        with contextlib.suppress(*_SHUT):
            self._tls.unwrap()  # does not wait for the other side
        self._is_shut = True
        self._flush()
        self._socket.write_eof()
        self._socket.resume_reading()

    def close(self) -> None:
        """Close both sides, after what is still to be sent."""
        self.write_eof()
        self._socket.close()

    def abort(self) -> None:
        """Close both sides at once."""
        self._is_shut = True
        self._socket.abort()

    def is_closing(self) -> bool:
        """Tell whether nothing can be sent any more."""
        return self._is_shut or self._socket.is_closing()

    def pause_reading(self) -> None:
        """Let the client wait."""
        self._is_reading = False
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading, with what has come before first."""
        if not self._is_reading:
            self._is_reading = True
            self._socket.resume_reading()
            asyncio.get_running_loop().call_soon(self._read)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are still to be sent."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the connection (asyncio, ``BaseTransport``)."""
        if name == "peercert":
            return self._tls.getpeercert()
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._socket.get_extra_info(name, default)

    # In between.

    def _shake_hands(self) -> bool:
        """Go on with the handshake; tell whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._flush()
        self._timer.cancel()
        self._handshakes.discard(self)
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)
        return True

    def _read(self) -> None:
        """Hand on what can be decrypted."""
        try:
            while self._is_reading and not self._is_shut and self._protocol is not None:
                data = self._tls.read(_CHUNK)
                if not data:
                    self._end()
                    return
                self._protocol.data_received(data)
                if not self._incoming.pending and not self._tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end()
        except ssl.SSLError as error:
            self._fail(error)
        if self._outgoing.pending:  # TLS may have something to say of its own, as new keys
            self._flush()

    def _end(self) -> None:
        """The client has closed its side of TLS, if not of TCP."""
        if not self.eof_received():
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        """Tell the client what is wrong, as TLS has it, and drop everything else."""
        logger.debug("TLS has failed: %s", error)
        self._flush()
        self._is_shut = True
        self._socket.close()
