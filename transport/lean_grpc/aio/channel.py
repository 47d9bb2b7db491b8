"""A gRPC channel on asyncio: calls to equivalent servers, each to the one with the fewest open calls."""

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Self

from lean_grpc.aio.address import Address, Backoff, ClientLink, Target
from lean_grpc.aio.deadlines import DeadlineTimer
from lean_grpc.aio.link import CLOSE_PATIENCE
from lean_grpc.aio.response import MessageStream, UnaryResponse
from lean_grpc.calls.client_call import ClientCall, ResponseHandler, Status
from lean_grpc.limits import CHANNEL_LIMITS, SWEEP_INTERVAL, Limits
from lean_grpc.status import CallError, StatusCode

DEADLINE_GRANULARITY: Final = 0.001
UNARY_ATTEMPTS: Final = 3
"""How often a unary call is sent at most, when servers refuse it unprocessed (REFUSED_STREAM, GOAWAY)."""

_CLOSED: Final = Status(StatusCode.CANCELLED, "the channel is closed")

Pairs = Iterable[tuple[str, str | bytes]]


class Channel:
    """Calls to a set of equivalent servers. Make and use it in one event loop; `close` it at the end.

    The first call makes it connect; it reconnects with back-off. A call made while every address has failed
    ends with UNAVAILABLE at once, unless `wait_for_ready` is true.
    """

    def __init__(
        self,
        targets: str | Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        tls_name: str | None = None,
        authority: str | None = None,
        limits: Limits = CHANNEL_LIMITS,
        backoff: Backoff | None = None,
    ) -> None:
        """Prepare a channel to `targets` (`host:port` or `unix:/path`); `tls_name` is the name to verify.

        Raises:
            ValueError: A target has neither form, or there is none.
        """
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._tls_name = tls_name
        self._authority = None if authority is None else authority.encode("ascii")
        self._scheme = b"http" if tls is None else b"https"
        self._limits = limits
        self._backoff = backoff or Backoff()
        self._links: set[ClientLink] = set()
        self._addresses: dict[str, tuple[Address, asyncio.Task[None]]] = {}
        self._waiting: deque[tuple[ClientCall, bool]] = deque()
        self._timer = DeadlineTimer(self._loop, self._expire, DEADLINE_GRANULARITY)
        self._watchers: list[asyncio.Future[None]] = []
        self._closed = False
        self._sweeper = self._loop.call_later(SWEEP_INTERVAL, self._sweep)
        self.set_targets([targets] if isinstance(targets, str) else targets)

    def set_targets(self, targets: Sequence[str]) -> None:
        """Replace the addresses.

        Connections to addresses that remain are kept, others end once their calls have ended. Calls that wait
        for a connection go to the new addresses. A closed channel ignores this.

        Raises:
            ValueError: A target has neither form, or there is none.
        """
        wanted = {text: Target.parse(text) for text in targets}
        if not wanted:
            raise ValueError("a channel needs at least one target")
        if self._closed:
            return
        for text in [text for text in self._addresses if text not in wanted]:
            address, task = self._addresses.pop(text)
            task.cancel()
            address.leave()
        for text, target in wanted.items():
            if text not in self._addresses:
                address = Address(
                    target,
                    limits=self._limits,
                    backoff=self._backoff,
                    tls=self._tls,
                    tls_name=self._tls_name,
                    links=self._links,
                    on_change=self._dispatch,
                )
                self._addresses[text] = (address, self._loop.create_task(address.keep()))
        if self._waiting or self._watchers:
            self._want()

    async def unary(
        self,
        path: str,
        payload: bytes,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the deadline travels to the server
        metadata: Pairs = (),
        compress: bool = False,
        wait_for_ready: bool = False,
    ) -> bytes:
        """Call a method with one request and return its one answer.

        Raises:
            CallError: The call ended with another status than OK.
            ValueError: A metadata key or value is not valid.
        """
        deadline = None if timeout is None else self._loop.time() + timeout
        for attempt in range(1, UNARY_ATTEMPTS + 1):
            response = UnaryResponse(self._loop)
            call = self._prepare(path, response, metadata, compress, deadline)
            call.send(payload, end=True)
            self._begin(call, wait_for_ready)
            try:
                return await response.result
            except CallError as error:
                if not error.retryable or attempt == UNARY_ATTEMPTS:
                    raise
            finally:
                call.cancel()
        raise AssertionError("the last attempt returns or raises")

    def call(
        self,
        path: str,
        handler: ResponseHandler,
        *,
        timeout: float | None = None,
        metadata: Pairs = (),
        compress: bool = False,
        wait_for_ready: bool = False,
    ) -> ClientCall:
        """Begin a call whose answers go to `handler`, from callbacks.

        Raises:
            ValueError: A metadata key or value is not valid.
        """
        deadline = None if timeout is None else self._loop.time() + timeout
        call = self._prepare(path, handler, metadata, compress, deadline)
        self._begin(call, wait_for_ready)
        return call

    def stream(
        self,
        path: str,
        *,
        timeout: float | None = None,
        metadata: Pairs = (),
        compress: bool = False,
        wait_for_ready: bool = False,
    ) -> MessageStream:
        """Begin a streaming call for a caller that awaits; see `MessageStream`.

        Raises:
            ValueError: A metadata key or value is not valid.
        """
        stream = MessageStream()
        deadline = None if timeout is None else self._loop.time() + timeout
        call = self._prepare(path, stream, metadata, compress, deadline)
        stream.attach(call)
        self._begin(call, wait_for_ready)
        return stream

    async def ready(self) -> None:
        """Connect, and return once some address takes calls.

        Raises:
            CallError: CANCELLED: the channel is closed.
        """
        self._want()
        while self._pick() is None:
            if self._closed:
                raise _CLOSED.error()
            change: asyncio.Future[None] = self._loop.create_future()
            self._watchers.append(change)
            await change

    async def close(self) -> None:
        """End all calls with CANCELLED and all connections."""
        self._closed = True
        self._sweeper.cancel()
        self._timer.stop()
        tasks = [task for _, task in self._addresses.values()]
        self._addresses.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft()[0].fail(_CLOSED)
        self._dispatch()
        for link in list(self._links):
            for call in _calls(link):
                call.fail(_CLOSED)
            link.core.drain()
            link.flush()
        links = list(self._links)
        if links:
            await asyncio.wait([link.gone for link in links], timeout=CLOSE_PATIENCE)
        for link in links:
            link.give_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _prepare(
        self, path: str, handler: ResponseHandler, metadata: Pairs, compress: bool, deadline: float | None
    ) -> ClientCall:
        call = ClientCall(path.encode("ascii"), handler, self._limits, metadata)
        call.compress = compress
        call.deadline = deadline
        return call

    def _begin(self, call: ClientCall, wait_for_ready: bool) -> None:
        if self._closed:
            call.fail(_CLOSED)
            return
        if call.done:
            return
        if call.deadline is not None:
            self._timer.note(call.deadline)
        link = self._pick()
        if link is not None:
            self._start(call, link)
            return
        self._want()
        if len(self._waiting) >= self._limits.max_waiting_calls:
            self._forget_those_given_up()
        if len(self._waiting) >= self._limits.max_waiting_calls:
            call.fail(Status(StatusCode.RESOURCE_EXHAUSTED, "too many calls wait for a connection"))
        elif self._hopeless() and not wait_for_ready:
            call.fail(self._unavailable())
        else:
            self._waiting.append((call, wait_for_ready))

    def _pick(self) -> ClientLink | None:
        """Return the connection with the fewest open calls among those that take one more."""
        best: ClientLink | None = None
        for address, _ in self._addresses.values():
            link = address.link
            if link is None or not link.core.can_open:
                continue
            if best is None or len(link.core.streams) < len(best.core.streams):
                best = link
        return best

    def _start(self, call: ClientCall, link: ClientLink) -> None:
        timeout = None if call.deadline is None else max(0.0, call.deadline - self._loop.time())
        call.start(link.core, self._scheme, self._authority or link.target.authority, timeout)

    def _want(self) -> None:
        for address, _ in self._addresses.values():
            address.want()

    def _hopeless(self) -> bool:
        """Tell whether no address is connected or about to be."""
        return not any(
            address.link is not None or address.connecting for address, _ in self._addresses.values()
        )

    def _unavailable(self) -> Status:
        errors = "; ".join(address.error for address, _ in self._addresses.values() if address.error)
        return Status(StatusCode.UNAVAILABLE, f"no server can be reached: {errors}"[:512])

    def _dispatch(self) -> None:
        """Start waiting calls while connections take them. If no connection is left or being made, fail the
        calls that did not ask to `wait_for_ready`.
        """
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)
        while self._waiting:
            link = self._pick()
            if link is None:
                break
            call, _ = self._waiting.popleft()
            if not call.done:
                self._start(call, link)
        if self._waiting and self._hopeless():
            patient = deque(entry for entry in self._waiting if entry[1])
            given_up = [call for call, wait in self._waiting if not wait]
            self._waiting = patient
            status = self._unavailable()
            for call in given_up:
                call.fail(status)

    def _sweep(self) -> None:
        now = self._loop.time()
        for link in list(self._links):
            link.sweep(now)
        self._sweeper = self._loop.call_later(SWEEP_INTERVAL, self._sweep)

    def _expire(self, now: float) -> float | None:
        earliest: float | None = None
        calls = [call for link in self._links for call in _calls(link)]
        calls += [call for call, _ in self._waiting]
        for call in calls:
            if call.deadline is None or call.done:
                continue
            if call.deadline <= now:
                call.fail(Status(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed"))
            elif earliest is None or call.deadline < earliest:
                earliest = call.deadline
        self._forget_those_given_up()
        return earliest

    def _forget_those_given_up(self) -> None:
        if any(call.done for call, _ in self._waiting):
            self._waiting = deque(entry for entry in self._waiting if not entry[0].done)


def _calls(link: ClientLink) -> list[ClientCall]:
    return [owner for stream in link.core.streams.values() if isinstance(owner := stream.owner, ClientCall)]
