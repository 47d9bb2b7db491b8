"""A gRPC server on asyncio: listeners, routes, deadlines, drain. A call costs no task of its own."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

from typing_extensions import override

from lean_grpc.aio.deadlines import DeadlineTimer
from lean_grpc.aio.handshakes import (
    FailedHandshake,
    Handshake,
    HandshakeFailure,
    Handshakes,
    TlsListener,
)
from lean_grpc.aio.link import Link, agreed_on_http2
from lean_grpc.aio.unary import UnaryFunction, unary_handler
from lean_grpc.calls.handler import Handler
from lean_grpc.calls.request import read_request
from lean_grpc.calls.server_call import ServerCall
from lean_grpc.http2.fields import Head
from lean_grpc.http2.stream import Stream
from lean_grpc.limits import DEFAULT_LIMITS, SWEEP_INTERVAL, Limits
from lean_grpc.status import StatusCode

HandlerFactory = Callable[[ServerCall], Handler]

DEADLINE_GRANULARITY: Final = 0.01


class Server:
    """A set of methods, served on any number of listeners.

    Use it from one event loop: `add` methods, `listen`, at the end `drain` or `close`.
    """

    def __init__(
        self,
        *,
        limits: Limits = DEFAULT_LIMITS,
        handshake_failed: Callable[[FailedHandshake], None] = lambda _: None,
    ) -> None:
        """Make a server without methods and listeners.

        `handshake_failed` is called for each TLS handshake that fails; it must not raise.
        """
        self._limits = limits
        self._handshakes = Handshakes(limits.max_handshakes, handshake_failed)
        self._handshake_failed = handshake_failed
        self._routes: dict[str, HandlerFactory] = {}
        self._listeners: list[asyncio.Server] = []
        self._tls_listeners: list[TlsListener] = []
        self._links: dict[_ServerLink, None] = {}
        self._timer: DeadlineTimer | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False

    def add(self, path: str, factory: HandlerFactory) -> None:
        """Serve the method `path` (`/package.Service/Method`) with a handler made by `factory` for each call.

        Raises:
            ValueError: The path is not of that form, or taken.
        """
        if path.count("/") != 2 or not path.startswith("/"):
            msg = f"a method's path has the form /package.Service/Method, not {path!r}"
            raise ValueError(msg)
        if path in self._routes:
            msg = f"{path} is served already"
            raise ValueError(msg)
        self._routes[path] = factory

    def add_unary(self, path: str, function: UnaryFunction) -> None:
        """Serve a method of one request and one answer; see `lean_grpc.aio.unary`."""
        self.add(path, unary_handler(function))

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    @property
    def streams(self) -> int:
        """How many calls are open on all connections."""
        return sum(len(link.core.streams) for link in self._links)

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that are held: unsent, incomplete, or not yet handed to a paused handler."""
        cores = [link.core for link in self._links]
        return sum(core.outbox.pending_bytes + core.held_messages.held for core in cores)

    async def listen(
        self,
        host: str | Sequence[str] = "127.0.0.1",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
        backlog: int = 1024,
        reuse_port: bool = False,
    ) -> int:
        """Accept connections on a TCP port (0: any free one) of one or more addresses; return the port.

        With port 0, each address gets a port of its own; that of the first is returned.

        Raises:
            OSError: The address cannot be bound.
        """
        loop = self._begin()
        listener = await loop.create_server(
            lambda: _ServerLink(self, loop),
            host,
            port,
            backlog=backlog,
            reuse_port=reuse_port,
            start_serving=tls is None,
        )
        self._listen(listener, tls, backlog)
        return int(listener.sockets[0].getsockname()[1])

    async def listen_unix(self, path: str, *, tls: ssl.SSLContext | None = None, backlog: int = 1024) -> None:
        """Accept connections on a UNIX socket at `path`.

        Raises:
            OSError: The path cannot be bound.
        """
        loop = self._begin()
        listener = await loop.create_unix_server(
            lambda: _ServerLink(self, loop), path, backlog=backlog, start_serving=tls is None
        )
        self._listen(listener, tls, backlog)

    def _listen(self, listener: asyncio.Server, tls: ssl.SSLContext | None, backlog: int) -> None:
        """Keep a listener. With TLS it has only bound its sockets: `TlsListener` accepts on them."""
        self._listeners.append(listener)
        if tls is None:
            return
        for bound in listener.sockets:
            listening = socket.socket(fileno=os.dup(bound.fileno()))
            listening.setblocking(False)
            listening.listen(backlog)
            self._tls_listeners.append(
                TlsListener(
                    listening,
                    tls,
                    handshakes=self._handshakes,
                    handshake_timeout=self._limits.handshake_timeout,
                    make_room=self._make_room_for_handshake,
                    make=self._link_after,
                )
            )

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the grace period is part of the meaning
        """Stop accepting, let open calls end within `timeout` seconds, then close.

        Returns whether all calls came to their end.
        """
        self._draining = True
        self._stop_listening()
        for link in list(self._links):
            link.drain()
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        finally:
            await self.close()
        return True

    async def close(self) -> None:
        """Close listeners and connections now; open calls are aborted."""
        self._stop_listening()
        await self._handshakes.stop()
        for link in list(self._links):
            link.abort()
        if self._links:
            await self._empty.wait()
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._timer is not None:
            self._timer.stop()

    # What links call.

    def admit(self, link: "_ServerLink") -> bool:
        """Register a connection; False while draining, or if there are too many and none can be ended."""
        if self._draining or not self._make_room():
            return False
        self._links[link] = None
        self._empty.clear()
        return True

    def refuse_protocol(self, transport: asyncio.BaseTransport) -> None:
        """Report a connection whose TLS did not agree on HTTP/2."""
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if isinstance(address, tuple) else ""
        self._handshake_failed(FailedHandshake(HandshakeFailure.NO_HTTP2, peer, ""))

    def dismiss(self, link: "_ServerLink") -> None:
        """Forget a connection."""
        self._links.pop(link, None)
        if not self._links:
            self._empty.set()

    def start_call(self, call: ServerCall, ended: bool, now: float) -> None:
        """Route a call to its handler, or refuse it."""
        request = call.request
        factory = self._routes.get(request.path)
        if request.http_refusal:
            call.refuse(request.http_refusal)
        elif request.refusal is not None:
            call.give_up(*request.refusal)
        elif factory is None:
            call.give_up(StatusCode.UNIMPLEMENTED, f"no method {request.path[:200]}")
        else:
            if request.timeout is not None:
                call.deadline = now + request.timeout
                if self._timer is not None:
                    self._timer.note(call.deadline)
            call.start(factory, ended)

    @property
    def limits(self) -> Limits:
        """The limits of every connection."""
        return self._limits

    def _make_room(self) -> bool:
        """Return whether one more connection may be held; end an older one if that is needed."""
        if len(self._links) + len(self._handshakes) < self._limits.max_connections:
            return True
        # A handshake ends first: peers that never finish one must not push out those that have.
        if self._handshakes.crowd_out():
            return True
        idle = next((each for each in self._links if each.idle), None)
        if idle is None:
            return False
        idle.dismiss()
        return True

    def _make_room_for_handshake(self) -> bool:
        if self._draining:
            return False
        if self._handshakes.full:
            self._handshakes.crowd_out()
        return self._make_room()

    def _link_after(self, handshake: Handshake) -> "_ServerLink":
        return _ServerLink(self, asyncio.get_running_loop(), handshake)

    def _stop_listening(self) -> None:
        for tls_listener in self._tls_listeners:
            tls_listener.close()
        self._tls_listeners.clear()
        for listener in self._listeners:
            listener.close()

    def _begin(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = DeadlineTimer(loop, self._expire, DEADLINE_GRANULARITY)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_INTERVAL, self._sweep, loop)
        return loop

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for link in list(self._links):
            link.sweep(now)
        self._sweeper = loop.call_later(SWEEP_INTERVAL, self._sweep, loop)

    def _expire(self, now: float) -> float | None:
        earliest: float | None = None
        for link in list(self._links):
            for call in link.calls():
                deadline = call.deadline
                if deadline is None:
                    continue
                if deadline <= now:
                    call.expire()
                elif earliest is None or deadline < earliest:
                    earliest = deadline
        return earliest


class _ServerLink(Link):
    """One accepted connection."""

    __slots__ = ("_handshake", "_server")

    def __init__(
        self, server: Server, loop: asyncio.AbstractEventLoop, handshake: Handshake | None = None
    ) -> None:
        super().__init__(loop, server.limits, server=True)
        self._server = server
        self._handshake = handshake

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        handshake, self._handshake = self._handshake, None
        if handshake is not None:
            # `admit` counts it as a connection; as a handshake too it would count twice.
            handshake.over()
        if not agreed_on_http2(transport):
            self._server.refuse_protocol(transport)
            cast("asyncio.Transport", transport).abort()
            return
        if not self._server.admit(self):
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.dismiss(self)

    @override
    def on_stream(self, stream: Stream, head: Head, ended: bool) -> None:
        call = ServerCall(self.core, stream, read_request(head), self._limits)
        self._server.start_call(call, ended, self._loop.time())

    @override
    def sweep(self, now: float) -> None:
        """Add `first_message_timeout` to the time-outs of a connection."""
        limit = self._limits.first_message_timeout
        if limit:
            for call in self.calls():
                if not call.unused:
                    continue
                if call.opened_at is None:
                    call.opened_at = now
                elif now - call.opened_at > limit:
                    call.give_up(StatusCode.DEADLINE_EXCEEDED, "no message came on the stream")
        super().sweep(now)

    def calls(self) -> list[ServerCall]:
        """Return the open calls; a list, because ending one changes the connection's streams."""
        return [
            owner for stream in self.core.streams.values() if isinstance(owner := stream.owner, ServerCall)
        ]
