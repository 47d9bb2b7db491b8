"""Joins an exchange to a gRPC call: bytes and time in, bytes out. Decides nothing."""

from collections.abc import Callable
from typing import Any, Final, Generic

from ext_proc.call import Stream
from ext_proc.exchange import OK, Exchange, Status
from ext_proc.processor import Ending, Late, Processor
from lean_grpc.calls.metadata import Metadata
from lean_grpc.status import StatusCode

PROCESS_METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

#: Batches of a backlog that are sent in one turn of the event loop: some megabytes, in a millisecond or two.
BATCHES_A_TURN: Final = 4

#: Takes what a processor raised, and the processor, for the log. Must not raise.
FaultSink = Callable[[Exception, Processor[Any]], None]
_FAILED: Final = Status(StatusCode.INTERNAL, "the processor failed on this request")


class ProcessHandler(Generic[Late]):
    """One ext-proc stream; a `lean_grpc.Handler`."""

    __slots__ = ("_blocked", "_clock", "_exchange", "_on_fault", "_paused", "_soon", "_stream")

    def __init__(
        self,
        stream: Stream,
        exchange: Exchange[Late],
        clock: Callable[[], float],
        on_fault: FaultSink,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`soon` calls a function in the next turn of the event loop, which a large backlog is sent in."""
        self._stream = stream
        self._exchange = exchange
        self._clock = clock
        self._on_fault = on_fault
        self._blocked = False
        self._soon = soon
        self._paused = False  # the backlog goes on in the next turn

    def opened(self, metadata: Metadata) -> None:
        """Wait for the first message; nothing in the metadata matters."""

    def received(self, payload: bytes) -> None:
        """Answer one message."""
        exchange = self._exchange
        try:
            replies = exchange.received(payload, self._clock())
            if replies:
                if not self._stream.send(*replies):
                    self._blocked = True
                if exchange.backlog is not None:
                    self._pump()
            elif exchange.waits:
                exchange.on_resume = self._resumed
        except Exception as fault:
            self._failed(fault)
            return
        if exchange.status is not None:
            self._finish_when_sent()

    def ended(self) -> None:
        """Finish: Envoy closes its side when the HTTP exchange is over or given up."""
        if self._close(Ending.DISCONNECTED):
            self._stream.finish(*OK)

    def aborted(self, code: StatusCode) -> None:
        """Release what the exchange holds."""
        self._close(Ending.DISCONNECTED)

    def writable(self) -> None:
        """Go on with the backlog."""
        self._blocked = False
        try:
            self._pump()
        except Exception as fault:
            self._failed(fault)
            return
        self._finish_when_sent()

    def _resumed(self, late: Late) -> None:
        """Send the answer that the processor waited for, as far as the peer takes it."""
        try:
            self._exchange.resumed(late, self._clock())
            if self._exchange.status is None:
                self._exchange.on_resume = self._resumed
            self._pump()
        except Exception as fault:
            self._failed(fault)
            return
        self._finish_when_sent()

    def _pump(self) -> None:
        batches = 0
        while self._exchange.backlog is not None and not self._blocked and not self._paused:
            self._blocked = not self._stream.send(*self._exchange.more())
            batches += 1
            if batches >= BATCHES_A_TURN and self._soon is not None:
                self._paused = True
                self._soon(self._go_on)

    def _go_on(self) -> None:
        self._paused = False
        if self._exchange.backlog is not None and not self._blocked:
            self.writable()

    def _finish_when_sent(self) -> None:
        exchange = self._exchange
        if exchange.status is not None and exchange.backlog is None:
            self._stream.finish(*exchange.status)

    def _failed(self, fault: Exception) -> None:
        self._on_fault(fault, self._exchange.processor)
        self._close(Ending.INTERNAL_ERROR)
        self._stream.finish(*_FAILED)

    def _close(self, ending: Ending) -> bool:
        """End the exchange; return False when the processor failed on it, with the call finished."""
        try:
            self._exchange.closed(ending, self._clock())
        except Exception as fault:
            self._on_fault(fault, self._exchange.processor)
            self._stream.finish(*_FAILED)
            return False
        return True
