"""A call that records the messages and the status sent on it."""

from lean_grpc import StatusCode


class RecordingStream:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.status: StatusCode | None = None
        self.message = ""
        self.room = True
        """The answer of `send`: whether the peer takes more."""

    def send(self, *payloads: bytes) -> bool:
        if self.status is None:
            self.sent += payloads
        return self.room

    def finish(self, status: StatusCode = StatusCode.OK, message: str = "") -> None:
        if self.status is None:
            self.status, self.message = status, message
