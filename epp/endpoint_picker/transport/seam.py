"""The transport seam: what a stream handler is given and what a stream offers. Types only, no I/O.

One handler object serves one gRPC call of any arity: a unary call is a stream of one message each way.
Calls to a handler never overlap. After `ended` a handler may still send; after `finish` or `aborted`
nothing more is called on it and nothing it sends goes anywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

Metadata = Sequence[tuple[str, str | bytes]]


class StatusCode(IntEnum):
    """gRPC status codes that the picker uses, with their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class Status:
    """How a stream ends: the code, and for anything but OK one sentence for the peer's log."""

    code: StatusCode = StatusCode.OK
    message: str = ""


OK = Status()


class Stream(Protocol):
    """The sending side of one call."""

    def send(self, *payloads: bytes) -> bool:
        """Queue messages in order. False: the peer is slow, send no more until `writable` is called."""
        ...

    def finish(self, status: Status = OK) -> None:
        """End the call once all that was sent has gone out."""
        ...

    def cancel(self) -> None:
        """Reset the call; what was not yet sent is dropped."""
        ...


class Handler(Protocol):
    """The receiving side of one call.

    While more is queued to be sent than the transport allows, it does not read from the stream, so a
    handler that answers each message at once needs no back-pressure of its own.
    """

    def opened(self, metadata: Metadata) -> None:
        """Take the call's metadata; comes first and once."""
        ...

    def received(self, payload: bytes) -> None:
        """Take one message."""
        ...

    def ended(self) -> None:
        """Note that the peer will send no more."""
        ...

    def aborted(self, code: StatusCode) -> None:
        """Note that the call is over without our doing: reset, deadline, lost connection."""
        ...

    def writable(self) -> None:
        """Note that what was queued has gone out, after a `send` that returned False."""
        ...


HandlerFactory = Callable[[Stream], Handler]
#: Full method path, such as "/grpc.health.v1.Health/Check", to the factory of its handlers.
Routes = Mapping[str, HandlerFactory]
