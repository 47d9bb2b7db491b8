"""Answers for callers that await: one message, or a stream of them. Built on `ClientCall`."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from lean_grpc.calls.client_call import ClientCall, Status
from lean_grpc.calls.metadata import Metadata
from lean_grpc.status import CallError, StatusCode

HELD_MESSAGES = 16
"""Messages that a `MessageStream` holds before it pauses the call."""


class UnaryResponse:
    """Collects one message and the status in a future."""

    __slots__ = ("_payload", "result")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.result: asyncio.Future[bytes] = loop.create_future()
        self._payload: bytes | None = None

    def opened(self, metadata: Metadata) -> None:
        """Ignore the initial metadata."""

    def received(self, payload: bytes) -> None:
        """Keep the one message."""
        if self._payload is not None and not self.result.done():
            self.result.set_exception(CallError(StatusCode.INTERNAL, "more than one message in the answer"))
        self._payload = payload

    def ended(self, status: Status) -> None:
        """Set the future to the message, or to the error of the status."""
        if self.result.done():
            return
        if status.code is not StatusCode.OK:
            self.result.set_exception(status.error())
        elif self._payload is None:
            self.result.set_exception(CallError(StatusCode.INTERNAL, "no message in the answer"))
        else:
            self.result.set_result(self._payload)

    def writable(self) -> None:
        """Do nothing: there is one message to send."""


class MessageStream:
    """A streaming call for callers that await: `send`, `end`, `async for`. Made by `Channel.stream`.

    Use it as an async context manager: a call still open at the end of the block is cancelled.
    """

    __slots__ = ("_call", "_messages", "_room", "_waiter", "initial_metadata", "status")

    def __init__(self) -> None:
        self._call: ClientCall | None = None
        self._messages: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.initial_metadata: Metadata | None = None
        self.status: Status | None = None

    def attach(self, call: ClientCall) -> None:
        """Set the call; `Channel.stream` does this."""
        self._call = call

    async def send(self, payload: bytes) -> None:
        """Send a message; returns when there is room for the next.

        Raises:
            CallError: The call has ended.
        """
        if self._call is None or self._call.done:
            raise self._ended_error()
        if not self._call.send(payload) and not self._call.done:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if self.status is not None and self.status.code is not StatusCode.OK:
            raise self.status.error()

    def end(self) -> None:
        """End the request: no more messages follow."""
        if self._call is not None:
            self._call.end()

    def cancel(self) -> None:
        """Cancel the call: reading it raises CANCELLED."""
        if self._call is not None and not self._call.done:
            self._call.cancel()
            self.ended(Status(StatusCode.CANCELLED, "cancelled by the caller"))

    async def read(self) -> bytes | None:
        """Return the next message, or None at the end of a call that was OK.

        Raises:
            CallError: The call ended with another status.
        """
        while not self._messages:
            if self.status is not None:
                if self.status.code is StatusCode.OK:
                    return None
                raise self.status.error()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        payload = self._messages.popleft()
        if len(self._messages) == HELD_MESSAGES // 2 and self._call is not None:
            self._call.resume()
        return payload

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        payload = await self.read()
        if payload is None:
            raise StopAsyncIteration
        return payload

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    # ResponseHandler

    def opened(self, metadata: Metadata) -> None:
        """Keep the initial metadata."""
        self.initial_metadata = metadata
        _wake(self._waiter)

    def received(self, payload: bytes) -> None:
        """Keep a message; pause at the bound."""
        self._messages.append(payload)
        if len(self._messages) >= HELD_MESSAGES and self._call is not None:
            self._call.pause()
        _wake(self._waiter)

    def ended(self, status: Status) -> None:
        """Keep the status."""
        self.status = status
        _wake(self._waiter)
        _wake(self._room)

    def writable(self) -> None:
        """Wake the sender that waits in `send`."""
        _wake(self._room)

    def _ended_error(self) -> CallError:
        return (self.status or Status(StatusCode.UNKNOWN, "the call is not open")).error()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
