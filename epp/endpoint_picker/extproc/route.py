"""The route of ext-proc's Process: makes an exchange for each stream and logs its faults."""

import logging
from collections.abc import Callable
from typing import Any

from endpoint_picker.decision import Router
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.extproc.traced import Asks, Begin, TracedHandler, TracedPicking
from endpoint_picker.faults import FaultLog
from endpoint_picker.record import Observer, Record
from endpoint_picker.transport import HandlerFactory, Stream
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.handler import ProcessHandler
from ext_proc.processor import Processor
from ext_proc.turns import Turns

_log = logging.getLogger(__name__)


def process_route(
    router: Router,
    budget: BodyBudget,
    observer: Observer,
    clock: Callable[[], float],
    begin_trace: Begin | None = None,
    soon: Callable[[Callable[[], None]], object] | None = None,
) -> HandlerFactory:
    """Return the factory of Process handlers. `clock` is monotonic, in seconds.

    `soon` calls a function in the next turn of the event loop: large bodies are read in turns. None: in one
    go.

    With `begin_trace` exchanges are traced; without it they run none of the code that traces.
    """
    turns = Turns(soon, budget.max_request_bytes)
    faults = FaultLog(_log, "exchange failed")
    if _log.isEnabledFor(logging.DEBUG):
        observer = _LoggingObserver(observer)

    def note_fault(fault: Exception, processor: Processor[Any]) -> None:
        request_id = processor.record.request_id if isinstance(processor, Picking) else ""
        faults.note(fault, clock(), request_id=request_id)

    def handler(stream: Stream) -> ProcessHandler[Any]:
        return ProcessHandler(
            stream,
            Exchange(Picking(router, observer, clock(), clock, turns), budget),
            clock,
            note_fault,
            soon,
        )

    if begin_trace is None:
        return handler
    asks, begin = Asks(router), begin_trace

    def traced(stream: Stream) -> TracedHandler:
        picking = TracedPicking(asks, observer, clock(), clock, turns, begin)
        return TracedHandler(stream, Exchange(picking, budget), clock, note_fault, soon)

    return traced


class _LoggingObserver:
    """Logs every exchange when it ends; used only when the log level is debug."""

    __slots__ = ("_observer", "decided", "gap_counter", "rewritten", "started")

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.started = observer.started
        self.decided = observer.decided
        self.gap_counter = observer.gap_counter
        self.rewritten = observer.rewritten

    def ended(self, record: Record) -> None:
        self._observer.ended(record)
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
