"""One address of a channel: it keeps one connection, with back-off. The channel chooses where a call goes."""

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from lean_grpc.aio.link import TLS_SHUTDOWN, Link
from lean_grpc.http2.codes import ErrorCode
from lean_grpc.limits import Limits

_UNIX: Final = "unix:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait after failed attempts to connect: `first` seconds, then `factor` times more each."""

    first: float = 0.1
    factor: float = 1.6
    longest: float = 10.0
    jitter: float = 0.2

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after `failures` (1 or more) in a row, spread by +-`jitter`."""
        # Bound the exponent: the power could overflow, and the longest delay is reached long before.
        delay = min(self.first * self.factor ** min(failures - 1, 64), self.longest)
        return delay * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - spreads load, no secret


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect: `host:port`, `[v6]:port` or `unix:/path`."""

    text: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read a target.

        Raises:
            ValueError: The text has none of the forms.
        """
        if text.startswith(_UNIX) and len(text) > len(_UNIX):
            return cls(text, "", 0, text[len(_UNIX) :])
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
            msg = f"a target has the form host:port or unix:/path, not {text!r}"
            raise ValueError(msg)
        return cls(text, host.strip("[]"), int(port), "")

    @property
    def authority(self) -> bytes:
        """The value of `:authority`."""
        return b"localhost" if self.path else self.text.encode("idna" if not self.text.isascii() else "ascii")


class ClientLink(Link):
    """One connection to a server.

    Its futures: `ready` is done once it takes calls, or never will; `leaving` once it takes no new ones;
    `gone` when the socket is closed.
    """

    __slots__ = ("_on_room", "gone", "leaving", "ready", "target")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, target: Target, on_room: Callable[[], None]
    ) -> None:
        self.target = target
        self._on_room = on_room
        self.ready: asyncio.Future[None] = loop.create_future()
        self.leaving: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        super().__init__(loop, limits, server=False)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()
        if not self.gone.done():
            self.gone.set_result(None)

    def give_up(self) -> None:
        """End it in whatever state it is: not connected yet, in its handshake, or open."""
        if self._transport is not None:
            self.abort()
        elif not self.gone.done():
            self.gone.set_result(None)

    @override
    def on_goaway(self, code: ErrorCode) -> None:
        self._leave()
        self._close_when_empty()

    @override
    def on_room(self) -> None:
        if self.core.exhausted:
            self._leave()
            self._close_when_empty()
        elif self.core.greeted:
            if not self.ready.done():
                self.ready.set_result(None)
            self._on_room()

    def _leave(self) -> None:
        for state in (self.ready, self.leaving):
            if not state.done():
                state.set_result(None)

    def _close_when_empty(self) -> None:
        if not self.core.streams:
            self._loop.call_soon(self.close)


class Address:
    """Keeps one connection to a target, for as long as `keep` runs."""

    __slots__ = (
        "_backoff",
        "_limits",
        "_links",
        "_on_change",
        "_tls",
        "_tls_name",
        "_wanted_again",
        "connecting",
        "error",
        "link",
        "target",
        "wanted",
    )

    def __init__(
        self,
        target: Target,
        *,
        limits: Limits,
        backoff: Backoff,
        tls: ssl.SSLContext | None,
        tls_name: str | None,
        links: set[ClientLink],
        on_change: Callable[[], None],
    ) -> None:
        self.target = target
        self.link: ClientLink | None = None
        self.connecting = False
        self.error = ""
        self.wanted = asyncio.Event()
        self._wanted_again = False
        self._limits = limits
        self._backoff = backoff
        self._tls = tls
        self._tls_name = tls_name
        self._links = links
        self._on_change = on_change

    def want(self) -> None:
        """Have `keep` make a connection, unless there is one or one is being made."""
        self._wanted_again = True
        if not self.wanted.is_set():
            self.connecting = True
            self.wanted.set()

    async def keep(self) -> None:
        """Connect, wait for the end of the connection, connect again; after a failure, wait first.

        After a GOAWAY of either side it connects again only when a call wants a connection.
        """
        failures = 0
        while True:
            await self.wanted.wait()
            self.connecting = True
            try:
                link = await self._connect()
            except Exception as error:  # an impossible host name raises one of several ValueErrors
                self.error = f"{self.target.text}: {str(error) or type(error).__name__}"
                failures += 1
                self._say(connecting=False)
                await asyncio.sleep(self._backoff.delay(failures))
                continue
            failures = 0
            self.link = link
            self._wanted_again = False
            self._say(connecting=False)
            await link.leaving
            self.link = None
            if (link.core.finished or link.core.goaway_received) and not self._wanted_again:
                self.wanted.clear()
            self._say(connecting=self.wanted.is_set())

    def leave(self) -> None:
        """Close the connection once its calls have ended. Cancel `keep` first: it would reconnect."""
        if self.link is not None:
            self.link.drain()

    def _say(self, *, connecting: bool) -> None:
        self.connecting = connecting
        self._on_change()

    async def _connect(self) -> ClientLink:
        """Return a connection whose server has sent its SETTINGS.

        Raises:
            OSError: It cannot be made, or the peer does not speak HTTP/2.
            ValueError: The target's host name, or the name to verify, is not a possible name.
        """
        link = ClientLink(asyncio.get_running_loop(), self._limits, self.target, self._on_change)
        self._links.add(link)
        link.gone.add_done_callback(lambda _: self._links.discard(link))
        patience = self._limits.handshake_timeout or None
        try:
            async with asyncio.timeout(patience):
                await self._open(link)
                await link.ready
        except BaseException:
            link.give_up()
            raise
        if link.core.exhausted:
            link.close()
            fault = link.core.fault
            raise ConnectionError(fault.reason if fault is not None else "the server takes no calls")
        return link

    async def _open(self, link: ClientLink) -> None:
        loop = asyncio.get_running_loop()
        target, tls = self.target, self._tls
        shutdown = None if tls is None else TLS_SHUTDOWN
        if target.path:
            name = None if tls is None else self._tls_name or "localhost"
            await loop.create_unix_connection(
                lambda: link, target.path, ssl=tls, server_hostname=name, ssl_shutdown_timeout=shutdown
            )
        else:
            name = None if tls is None else self._tls_name or target.host
            await loop.create_connection(
                lambda: link,
                target.host,
                target.port,
                ssl=tls,
                server_hostname=name,
                ssl_shutdown_timeout=shutdown,
            )
