"""Bounds what ZMQ holds of a connection: bytes that came and were not read.

ZMQ's own bounds are not enough. `MAXMSGSIZE` is that of one frame, `RCVHWM` counts whole messages, and a
message is kept until its last frame has come: a peer that never sends a last frame fills the memory. What has
come is read from the kernel's counter (TCP_INFO), and a connection with more than `MAX_UNREAD` unread is shut
down; ZMQ then drops the unfinished message, and connects again where it was the one to connect.
"""

import os
import socket
import struct
from typing import Final

#: Most unread bytes of a connection. A few more come until the next `check`.
MAX_UNREAD: Final = 64 << 20
#: Seconds between two checks.
CHECK_S: Final = 0.25

_INFO_BYTES: Final = 192
#: Place of tcpi_bytes_received in Linux's struct tcp_info.
_RECEIVED: Final = struct.Struct("=128xQ")
_SHORT_FRAME: Final = 256


class _Connection:
    __slots__ = ("ends", "read")

    def __init__(self, ends: tuple[object, object]) -> None:
        self.ends = ends
        self.read = 0


class Inflow:
    """The connections of one ZMQ socket, by file descriptor."""

    __slots__ = ("_connections", "_last")

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}
        self._last: _Connection | None = None

    def opened(self, fd: int) -> None:
        """Note a new connection."""
        try:
            with _own(fd) as own:
                self._last = self._connections[fd] = _Connection((own.getsockname(), own.getpeername()))
        except OSError:
            self.closed(fd)  # it is over

    def closed(self, fd: int) -> None:
        """Forget a connection."""
        if self._connections.pop(fd, None) is self._last:
            self._last = None

    def read(self, size: int, fd: int | None = None) -> None:
        """Note a frame of this size that was read; None: from the connection opened last."""
        connection = self._last if fd is None else self._connections.get(fd)
        if connection is not None:
            connection.read += size + (2 if size < _SHORT_FRAME else 9)  # with the frame's header

    def check(self) -> int:
        """Shut down the connections that have too much unread; return how many there were."""
        floods = 0
        for fd, connection in list(self._connections.items()):
            try:
                with _own(fd) as own:
                    if (own.getsockname(), own.getpeername()) != connection.ends:
                        raise OSError  # the number is another connection's by now
                    received = _received(own)
                    if received - connection.read > MAX_UNREAD:
                        # Reset it when ZMQ closes it, so that the peer does not wait for room.
                        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        own.shutdown(socket.SHUT_RDWR)
                        floods += 1
                        self.closed(fd)
                    elif received < connection.read:  # messages of an earlier connection were read
                        connection.read = received
            except OSError:
                self.closed(fd)
        return floods


def _own(fd: int) -> socket.socket:
    """Return a descriptor of one's own for the connection. Raises OSError when there is none."""
    return socket.socket(fileno=os.dup(fd))


def _received(connection: socket.socket) -> int:
    """Return the bytes that have come on a connection; 0 where the kernel does not count them."""
    found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(found) < _RECEIVED.size:
        return 0
    received: int = _RECEIVED.unpack_from(found)[0]
    return received
