"""A stream of the transport seam that keeps what is sent on it."""

from endpoint_picker.transport.seam import OK, Status


class RecordingStream:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.status: Status | None = None
        self.cancelled = False
        self.room = True
        """Whether the peer takes more; False makes `send` answer False."""

    def send(self, *payloads: bytes) -> bool:
        if self.status is None:
            self.sent += payloads
        return self.room

    def finish(self, status: Status = OK) -> None:
        if self.status is None:
            self.status = status

    def cancel(self) -> None:
        self.cancelled = True
