"""The callbacks of a handler, which serves one call on a server; and the handler of a call that is over."""

from typing import Protocol

from lean_grpc.calls.metadata import Metadata
from lean_grpc.status import StatusCode


class Handler(Protocol):
    """Serves one call. Callbacks come in order, from the event loop's thread, and must not block."""

    def opened(self, metadata: Metadata) -> None:
        """Take the start of the call; always the first callback."""

    def received(self, payload: bytes) -> None:
        """Take one message."""

    def ended(self) -> None:
        """Learn that the client sends no more."""

    def aborted(self, code: StatusCode) -> None:
        """Learn that the call ended without `finish` or `cancel`; always the last callback."""

    def writable(self) -> None:
        """Learn that there is room again after `send` had returned False."""


class _Silent:
    """Handler of a call that is over."""

    __slots__ = ()

    def opened(self, metadata: Metadata) -> None:
        pass

    def received(self, payload: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def aborted(self, code: StatusCode) -> None:
        pass

    def writable(self) -> None:
        pass


SILENT: Handler = _Silent()
