"""Joins one socket to one sans-IO connection: one write for each read, time-outs checked by `sweep`.

It knows nothing of gRPC calls; the links of server and channel add them.
"""

import asyncio
import ssl
from typing import Final, cast

from typing_extensions import override

from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.connection import Connection
from lean_grpc.http2.errors import ProtocolError
from lean_grpc.http2.fields import Head
from lean_grpc.http2.lifecycle import DRAIN_PING
from lean_grpc.http2.stream import Stream
from lean_grpc.limits import Limits

CLOSE_PATIENCE: Final = 5.0
"""Seconds that a closing socket may take to deliver its last bytes before it is aborted."""

TLS_SHUTDOWN: Final = 1.0
"""Seconds that a TLS peer may take to answer our close_notify; the answer carries no data."""

_KEEPALIVE_PING: Final = b"lean:ok?"


class Link(asyncio.Protocol):
    """Base of both links. `sweep` must be called about once a second until `connection_lost`."""

    __slots__ = (
        "_active",
        "_born",
        "_closing_since",
        "_drain_since",
        "_frames_before",
        "_heard",
        "_last_heard",
        "_limits",
        "_loop",
        "_midway_since",
        "_pinged",
        "_transport",
        "core",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, *, server: bool) -> None:
        self.core = Connection(server=server, limits=limits, owner=self)
        self._loop = loop
        self._limits = limits
        self._transport: asyncio.Transport | None = None
        now = loop.time()
        self._born = self._active = self._last_heard = now
        self._heard = False
        self._pinged: float | None = None
        self._midway_since = now
        self._frames_before = -1
        self._drain_since: float | None = None
        self._closing_since: float | None = None

    # asyncio.Protocol

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless TLS agreed on something else than h2."""
        self._transport = transport = cast("asyncio.Transport", transport)
        if not agreed_on_http2(transport):
            transport.abort()
            return
        self.core.outbox.notify = self._flush_soon
        self.flush()

    @override
    def data_received(self, data: bytes) -> None:
        """Parse the bytes, then write all frames that resulted at once."""
        self._heard = True
        core = self.core
        core.receive(data)
        outbox = core.outbox
        if outbox.frames or outbox.ripe or core.fault is not None or self._drain_since is not None:
            self.flush()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """End every stream with `on_reset`."""
        self._transport = None
        self.core.lose()

    @override
    def pause_writing(self) -> None:
        """Hold data back: the socket's buffer is full."""
        self.core.outbox.pause()

    @override
    def resume_writing(self) -> None:
        """Go on sending."""
        self.core.outbox.resume()

    # Connection's owner

    def on_stream(self, stream: Stream, head: Head, ended: bool) -> None:
        """Never called for a client: push is off."""

    def on_goaway(self, code: ErrorCode) -> None:
        """A server has nothing to do: it opens no streams."""

    def on_ping_ack(self, payload: bytes) -> None:
        """Send the final GOAWAY of a drain: the peer has seen the first."""
        if payload == DRAIN_PING:
            self.core.drain()

    def on_room(self) -> None:
        """A server opens no streams."""

    # Output and end

    def flush(self) -> None:
        """Write what may be written."""
        transport = self._transport
        core = self.core
        if transport is None:
            return
        take = core.outbox.take
        while data := take():
            transport.write(data)
        if core.fault is not None or core.finished:
            self.close()

    def _flush_soon(self) -> None:
        """Schedule one flush, in the loop's next turn, for output that came up outside of a read."""
        self._loop.call_soon(self.flush)

    def close(self) -> None:
        """Close the socket once its buffer is written; `sweep` aborts it if that takes too long."""
        if self._transport is not None and self._closing_since is None:
            self._closing_since = self._loop.time()
            self._transport.close()

    def abort(self) -> None:
        """Close the socket now."""
        if self._transport is not None:
            self._closing_since = self._loop.time()
            self._transport.abort()

    @property
    def idle(self) -> bool:
        """Tell whether the connection is open and holds no stream."""
        return not self.core.streams and self._closing_since is None

    def dismiss(self) -> None:
        """Close a connection without streams, after a GOAWAY that names the last stream taken."""
        self.core.drain()
        self.flush()

    def drain(self) -> None:
        """Begin a drain: GOAWAY now, the final one after the peer's answer or `CLOSE_PATIENCE`."""
        if self._drain_since is None:
            self._drain_since = self._loop.time()
            self.core.announce_drain()

    def sweep(self, now: float) -> None:
        """Check every time-out of the connection, and begin a new interval of its flood counters."""
        core = self.core
        limits = self._limits
        if self._closing_since is not None:
            if now - self._closing_since > CLOSE_PATIENCE and self._transport is not None:
                self._transport.abort()
            return
        if core.busy:
            self._active = now
        core.sweep()
        if self._heard:
            self._heard = False
            self._last_heard = now
            self._pinged = None
        if self._drain_since is not None and now - self._drain_since > CLOSE_PATIENCE:
            core.drain()
        self._sweep_peer(now, limits)
        self.flush()

    def _sweep_peer(self, now: float, limits: Limits) -> None:
        core = self.core
        if _over(now - self._born, limits.handshake_timeout) and not (core.greeted and core.acknowledged):
            core.fail(ProtocolError(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS or no acknowledgement in time"))
        elif not core.midway or core.frames_seen != self._frames_before:
            self._midway_since = now
            self._frames_before = core.frames_seen
        elif _over(now - self._midway_since, limits.frame_timeout):
            core.fail(ProtocolError(ErrorCode.PROTOCOL_ERROR, "the rest of a frame does not come"))
        if _over(now - self._active, limits.idle_timeout):
            core.drain()
        elif self._pinged is not None:
            if _over(now - self._pinged, limits.keepalive_timeout):
                self.abort()
        elif (core.server or core.streams) and _over(now - self._last_heard, limits.keepalive_interval):
            self._pinged = now
            core.ping(_KEEPALIVE_PING)


def agreed_on_http2(transport: asyncio.BaseTransport) -> bool:
    """Tell whether a connection may speak HTTP/2: it has no TLS, or ALPN agreed on h2."""
    tls = transport.get_extra_info("ssl_object")
    return not isinstance(tls, ssl.SSLObject) or tls.selected_alpn_protocol() == "h2"


def _over(elapsed: float, limit: float) -> bool:
    """Tell whether a time-out has passed; 0 switches one off."""
    return 0 < limit < elapsed
