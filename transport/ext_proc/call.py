"""What a handler needs of the gRPC call that it serves. Types only, so that tests can stand in for a call."""

from typing import Protocol

from lean_grpc.status import StatusCode


class Stream(Protocol):
    """The sending side of one call."""

    def send(self, *payloads: bytes) -> bool:
        """Queue messages in order. False: the peer is slow, send no more until `writable` is called.

        Until then no message of the peer is delivered, so that a handler that answers each message at once
        needs no back-pressure of its own.
        """
        ...

    def finish(self, status: StatusCode = StatusCode.OK, message: str = "") -> None:
        """End the call once all queued messages have gone out; the message is for the peer's log."""
        ...
