"""Joins the exchange to the transport: bytes and time in, bytes out. Decides nothing."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from endpoint_picker.decision import Router
from endpoint_picker.extproc.buffers import BufferBudget
from endpoint_picker.extproc.stream import OK, Exchange, Status
from endpoint_picker.observability.faults import FaultLog
from endpoint_picker.record import Ending, Observer, Record
from endpoint_picker.transport import HandlerFactory, Metadata, StatusCode, Stream

PROCESS_METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

_log = logging.getLogger(__name__)


class ProcessHandler:
    """One ext-proc stream."""

    __slots__ = ("_blocked", "_clock", "_exchange", "_faults", "_log_end", "_stream")

    def __init__(
        self,
        stream: Stream,
        exchange: Exchange,
        clock: Callable[[], float],
        faults: FaultLog,
        *,
        log_end: bool = False,
    ) -> None:
        self._stream = stream
        self._exchange = exchange
        self._clock = clock
        self._faults = faults
        self._log_end = log_end
        self._blocked = False

    def opened(self, metadata: Metadata) -> None:
        """Wait for the first message; nothing in the metadata matters."""

    def received(self, payload: bytes) -> None:
        """Answer one message."""
        exchange = self._exchange
        try:
            replies = exchange.received(payload, self._clock())
            if replies:
                self._send(replies)
        except Exception as fault:
            self._faults.note(fault, self._clock(), request_id=exchange.record.request_id)
            exchange.closed(Ending.INTERNAL_ERROR, self._clock())
            self._finish(Status(StatusCode.INTERNAL, "the picker failed on this request"))
            return
        if exchange.status is not None:
            self._finish(exchange.status)

    def ended(self) -> None:
        """Finish: Envoy closes its side when the HTTP exchange is over or given up."""
        self._exchange.closed(Ending.DISCONNECTED, self._clock())
        self._finish(OK)

    def aborted(self, code: StatusCode) -> None:
        """Release what the exchange holds."""
        self._exchange.closed(Ending.DISCONNECTED, self._clock())
        if self._log_end:
            _log_exchange(self._exchange.record)

    def writable(self) -> None:
        """Go on with a large body."""
        self._blocked = False
        self._pump()

    def _finish(self, status: Status) -> None:
        self._stream.finish(*status)
        if self._log_end:
            _log_exchange(self._exchange.record)

    def _send(self, replies: Sequence[bytes]) -> None:
        if not self._stream.send(*replies):
            self._blocked = True
        self._pump()

    def _pump(self) -> None:
        while self._exchange.has_more and not self._blocked:
            self._blocked = not self._stream.send(*self._exchange.more())


def _log_exchange(record: Record) -> None:
    """Log one request; only done at debug."""
    _log.debug(
        "exchange over",
        extra={
            "request_id": record.request_id,
            "model": record.model,
            "priority": record.priority,
            "outcome": record.outcome and record.outcome.value,
            "ending": record.ending and record.ending.value,
            "endpoint": record.endpoint,
            "served_by": record.served_by,
            "status": record.response_status,
            "seconds": round(record.ended_at - record.started_at, 6),
        },
    )


def process_route(
    router: Router, budget: BufferBudget, observer: Observer, clock: Callable[[], float]
) -> HandlerFactory:
    """Return the factory that serves Process with the given router."""

    faults = FaultLog(_log, "exchange failed")
    debug = _log.isEnabledFor(logging.DEBUG)

    def handler(stream: Stream) -> ProcessHandler:
        exchange = Exchange(router, budget, observer, clock(), clock)
        return ProcessHandler(stream, exchange, clock, faults, log_end=debug)

    return handler
