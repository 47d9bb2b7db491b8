"""TLS handshakes of a server: their number is bounded, and each failure is reported with its kind.

A connection is handed to the server after its handshake. Until then it is in `Handshakes`. The server counts
handshakes among its connections, and ends the oldest one to make room for a newer connection.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lean_grpc.aio.link import TLS_SHUTDOWN
from lean_grpc.http2.codes import PREFACE

_log = logging.getLogger("lean_grpc.handshakes")

_TLS_HANDSHAKE: Final = 0x16
"""First byte of a TLS ClientHello's record (RFC 8446, 5.1)."""
_PROTOCOL_BYTES: Final = 4
"""Bytes after which the HTTP/2 preface and an HTTP/1 method differ."""
_ACCEPT_PAUSE: Final = 1.0
"""Seconds without accepting after the process has run out of descriptors."""
_LOOP_TIMER_MARGIN: Final = 5.0
"""Seconds by which asyncio's handshake timer is later than ours, so that ours is the one that fires."""


class HandshakeFailure(StrEnum):
    """How a handshake failed."""

    CLEARTEXT_HTTP2 = "cleartext_http2"
    """The peer began with the HTTP/2 preface, without TLS."""
    CLEARTEXT_HTTP1 = "cleartext_http1"
    """The peer began with an HTTP/1 request, without TLS."""
    NO_HTTP2 = "no_http2"
    """TLS was agreed on, but the peer did not offer HTTP/2 (ALPN `h2`)."""
    UNTRUSTED = "untrusted"
    """The peer does not accept the certificate."""
    TIMEOUT = "timeout"
    """It took longer than `Limits.handshake_timeout`."""
    CLOSED = "closed"
    """The peer closed the connection before the end of the handshake, as TCP probes do."""
    CROWDED_OUT = "crowded_out"
    """It was ended to make room for a newer connection."""
    OTHER = "other"
    """Anything else: no common version or cipher, or bytes of no known protocol."""


@dataclass(frozen=True, slots=True)
class FailedHandshake:
    """One failure; `peer` is an address without its port, "" over a UNIX socket."""

    kind: HandshakeFailure
    peer: str
    detail: str


class Handshake:
    """One connection in its handshake."""

    __slots__ = ("_owner", "crowded_out", "peer", "task")

    def __init__(self, owner: "Handshakes", peer: str) -> None:
        self._owner = owner
        self.peer = peer
        self.crowded_out = False
        self.task: asyncio.Task[None] | None = None

    def over(self) -> None:
        """Note that the handshake has ended, well or not."""
        self._owner.forget(self)


class Handshakes:
    """All handshakes under way of one server.

    The oldest ends first, whatever its peer has sent. Under a flood of `r` connections a second each peer has
    `limit / r` seconds, and no choice of bytes gains a peer more.
    """

    __slots__ = ("_failed", "_limit", "_tasks", "_under_way")

    def __init__(self, limit: int, failed: Callable[[FailedHandshake], None]) -> None:
        """`failed` is called for each failure and must not raise."""
        self._limit = limit
        self._failed = failed
        self._under_way: dict[Handshake, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """Tell whether one more is too many."""
        return len(self._under_way) >= self._limit

    def begin(self, peer: str) -> Handshake:
        """Return a new handshake."""
        handshake = Handshake(self, peer)
        self._under_way[handshake] = None
        return handshake

    def follow(self, handshake: Handshake, task: asyncio.Task[None]) -> None:
        """Note the task that brings a handshake to its end."""
        handshake.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, handshake: Handshake) -> None:
        """Remove a handshake from the count."""
        self._under_way.pop(handshake, None)

    def failed(self, handshake: Handshake, kind: HandshakeFailure, detail: str = "") -> None:
        """Report a failure."""
        self._failed(FailedHandshake(kind, handshake.peer, detail))

    def crowd_out(self) -> bool:
        """End the oldest handshake; return whether there was one."""
        oldest = next(iter(self._under_way), None)
        if oldest is None:
            return False
        self.forget(oldest)
        oldest.crowded_out = True
        if oldest.task is not None:
            oldest.task.cancel()
        return True

    async def stop(self) -> None:
        """End all handshakes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class TlsListener:
    """Accepts connections of one listening socket and brings each through its handshake."""

    __slots__ = ("_context", "_handshakes", "_loop", "_make", "_make_room", "_pause", "_socket", "_timeout")

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        *,
        handshakes: Handshakes,
        handshake_timeout: float,
        make_room: Callable[[], bool],
        make: Callable[[Handshake], asyncio.Protocol],
    ) -> None:
        """Accept from now on; the listener closes `listening`.

        `make_room` returns whether to take one more connection. `make` returns the protocol of an accepted
        one, whose `connection_made` comes after the handshake. `handshake_timeout` is in seconds, 0 for none.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._context = context
        self._handshakes = handshakes
        self._timeout = handshake_timeout
        self._make_room = make_room
        self._make = make
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept no more. Handshakes under way are not ended by this."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accept one connection; the loop calls again while there are more."""
        try:
            accepted, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            # Out of descriptors or memory. The connection stays in the backlog: without a pause it spins.
            _log.error("cannot accept connections for %g s: %s", _ACCEPT_PAUSE, error)
            self._loop.remove_reader(self._socket)
            self._pause = self._loop.call_later(_ACCEPT_PAUSE, self._listen)
            return
        if not self._make_room():
            accepted.close()
            return
        accepted.setblocking(False)
        handshake = self._handshakes.begin(address[0] if isinstance(address, tuple) else "")
        task = self._loop.create_task(self._shake(accepted, handshake))
        self._handshakes.follow(handshake, task)

    async def _shake(self, accepted: socket.socket, handshake: Handshake) -> None:
        handshakes = self._handshakes
        handed_over = False
        try:
            async with asyncio.timeout(self._timeout or None):
                cleartext = await self._cleartext(accepted)
                if cleartext is not None:
                    handshakes.failed(handshake, cleartext)
                    return
                handed_over = True
                await self._loop.connect_accepted_socket(
                    lambda: self._make(handshake),
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=self._timeout + _LOOP_TIMER_MARGIN if self._timeout else None,
                    ssl_shutdown_timeout=TLS_SHUTDOWN,
                )
        except asyncio.CancelledError:
            if handshake.crowded_out:
                handshakes.failed(handshake, HandshakeFailure.CROWDED_OUT)
            raise
        except TimeoutError:
            handshakes.failed(handshake, HandshakeFailure.TIMEOUT)
        except ssl.SSLError as error:
            handshakes.failed(handshake, _kind(error), error.reason or "")
        except OSError as error:
            handshakes.failed(handshake, HandshakeFailure.CLOSED, error.strerror or "")
        finally:
            handshake.over()
            if not handed_over:
                accepted.close()

    async def _cleartext(self, accepted: socket.socket) -> HandshakeFailure | None:
        """Return the failure of a peer without TLS; None for a peer that begins a TLS handshake.

        The first byte is peeked at: it stays in the socket's buffer for TLS.
        """
        await _readable(self._loop, accepted)
        first = accepted.recv(1, socket.MSG_PEEK)
        if not first:
            return HandshakeFailure.CLOSED
        if first[0] == _TLS_HANDSHAKE:
            return None
        begun = b""
        while len(begun) < _PROTOCOL_BYTES:
            more = await self._loop.sock_recv(accepted, _PROTOCOL_BYTES - len(begun))
            if not more:
                return HandshakeFailure.CLOSED
            begun += more
        if begun == PREFACE[:_PROTOCOL_BYTES]:
            return HandshakeFailure.CLEARTEXT_HTTP2
        is_method = begun.isascii() and begun.isupper() and begun.strip().isalpha()
        return HandshakeFailure.CLEARTEXT_HTTP1 if is_method else HandshakeFailure.OTHER


async def _readable(loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
    """Wait until the peer has sent something, or has closed."""
    future: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted, _settle, future)
    try:
        await future
    finally:
        loop.remove_reader(accepted)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _kind(error: ssl.SSLError) -> HandshakeFailure:
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return HandshakeFailure.CLOSED
    reason = error.reason or ""
    # Alerts by which a peer refuses a certificate (RFC 8446, 6.2).
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return HandshakeFailure.UNTRUSTED
    return HandshakeFailure.OTHER
