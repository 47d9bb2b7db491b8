"""Joins the exchange to the transport: bytes and time in, bytes out. Decides nothing."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from endpoint_picker.extproc.buffers import BufferBudget
from endpoint_picker.extproc.record import Ending, Observer
from endpoint_picker.extproc.stream import Exchange
from endpoint_picker.request import Router
from endpoint_picker.transport.seam import HandlerFactory, Metadata, Status, StatusCode, Stream

PROCESS_METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

_log = logging.getLogger(__name__)


class ProcessHandler:
    """One ext-proc stream."""

    __slots__ = ("_blocked", "_clock", "_exchange", "_stream")

    def __init__(self, stream: Stream, exchange: Exchange, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._exchange = exchange
        self._clock = clock
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
        except Exception:
            _log.exception("exchange failed", extra={"request_id": exchange.record.request_id})
            exchange.closed(Ending.INTERNAL_ERROR, self._clock())
            self._stream.finish(Status(StatusCode.INTERNAL, "the picker failed on this request"))
            return
        if exchange.status is not None:
            self._stream.finish(exchange.status)

    def ended(self) -> None:
        """Finish: Envoy closes its side when the HTTP exchange is over or given up."""
        self._exchange.closed(Ending.DISCONNECTED, self._clock())
        self._stream.finish()

    def aborted(self, code: StatusCode) -> None:
        """Release what the exchange holds."""
        self._exchange.closed(Ending.DISCONNECTED, self._clock())

    def writable(self) -> None:
        """Go on with a large body."""
        self._blocked = False
        self._pump()

    def _send(self, replies: Sequence[bytes]) -> None:
        if not self._stream.send(*replies):
            self._blocked = True
        self._pump()

    def _pump(self) -> None:
        while self._exchange.has_more and not self._blocked:
            self._blocked = not self._stream.send(*self._exchange.more())


def process_route(
    router: Router, budget: BufferBudget, observer: Observer, clock: Callable[[], float]
) -> HandlerFactory:
    """Return the factory that serves Process with the given router."""

    def handler(stream: Stream) -> ProcessHandler:
        return ProcessHandler(stream, Exchange(router, budget, observer, clock(), clock), clock)

    return handler
