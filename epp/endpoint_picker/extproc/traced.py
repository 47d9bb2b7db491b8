"""An exchange whose request is traced; used in place of `Picking` only while tracing is on. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from typing_extensions import override

from endpoint_picker.decision import Decision, Refusal, Resume, Router
from endpoint_picker.decision import Waiting as DecisionWaits
from endpoint_picker.extproc.picking import Late, Picking
from endpoint_picker.record import Observer, Record
from endpoint_picker.request import InferenceRequest
from ext_proc import wire
from ext_proc.handler import ProcessHandler
from ext_proc.head import Head
from ext_proc.processor import Ending, Forward, Reply, Waiting
from ext_proc.turns import Turns
from ext_proc.wire import Held
from lean_grpc.calls.metadata import Metadata

_TRACEPARENT: Final = "traceparent"
_CONTEXT: Final = (_TRACEPARENT, "tracestate")


class Trace(Protocol):
    """The spans of one request; `observability.tracing.RequestTrace`."""

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """Return the headers that the request takes on to the model server."""
        ...

    def decided(
        self,
        record: Record,
        request: InferenceRequest,
        decision: Decision | None,
        times: tuple[float, float],
        waited_since: float | None,
    ) -> None:
        """Note the answer to the request."""
        ...

    def ended(self, record: Record) -> None:
        """Note the end of the exchange."""
        ...


Begin = Callable[[Mapping[str, str], float], Trace | None]
"""Begins the trace of a request with the trace context that came with it; None when it is not traced."""


class Asks:
    """A router whose decisions may add spans. All exchanges share it."""

    def __init__(self, router: Router) -> None:
        self._decide = router.decide
        self.asked: InferenceRequest | None = None
        """The request of the latest call of `decide`, which is synchronous."""
        self.unrouted = router.unrouted
        self.failed = router.failed
        self.reading = router.reading
        self.first_byte = router.first_byte
        self.response_headers = router.response_headers
        self.response_complete = router.response_complete
        self.ended = router.ended

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | DecisionWaits:
        """Ask the router, and let plugins add spans."""
        self.asked = request
        request.timed = []
        return self._decide(request, subset, resume)


class TracedPicking(Picking):
    """A `Picking` that keeps the spans of its request and sends their context on to the model server.

    The parent is the span of the proxy that the call's metadata names. A proxy that does not trace its calls
    names none; then it is the one in the request's headers.
    """

    __slots__ = ("_asked", "_asked_at", "_asks", "_begin", "_trace", "_waited_since", "context")

    def __init__(
        self,
        asks: "Asks",
        observer: Observer,
        now: float,
        clock: Callable[[], float],
        turns: Turns,
        begin: Begin,
    ) -> None:
        super().__init__(asks, observer, now, clock, turns)
        self._asks = asks
        self._begin = begin
        self._trace: Trace | None = None
        self._asked: InferenceRequest | None = None
        self._asked_at = now
        self._waited_since: float | None = None
        self.context: Mapping[str, str] = {}
        """traceparent and tracestate of the call's metadata."""

    @override
    def request_headers(self, head: Head, now: float) -> bool:
        """Keep the headers, and begin the trace."""
        holds = super().request_headers(head, now)
        headers = self._headers
        assert headers is not None  # noqa: S101 - just set
        context = self.context
        if _TRACEPARENT not in context:
            context = {name: headers.all[name] for name in _CONTEXT if name in headers.all}
        self._trace = self._begin(context, self.record.started_at)
        return holds

    @override
    def request(
        self, body: Sequence[Held] | None, resume: Callable[[Late], None], now: float
    ) -> Forward | Reply | Waiting:
        """Forget which request the router was asked about last: it is another one."""
        self._asks.asked = None
        return super().request(body, resume, now)

    @override
    def _has_been_read(self, now: float) -> Forward | Reply | Waiting:
        self._asks.asked = None
        return super()._has_been_read(now)

    @override
    def _decide(self, resume: Callable[[Late], None], now: float) -> Forward | Reply | Waiting:
        """Decide, and note when a wait begins."""
        self._asked_at = now
        answer = super()._decide(resume, now)
        self._asked = self._asks.asked
        if not isinstance(answer, Forward | Reply):
            self._waited_since = now
        return answer

    @override
    def _picked(self, decision: Decision, request: InferenceRequest, now: float, took: float) -> Forward:
        forward = super()._picked(decision, request, now, took)
        trace = self._trace
        if trace is not None:
            trace.decided(self.record, request, decision, (self._asked_at, now + took), self._waited_since)
            for name, value in trace.headers:
                forward.mutation += wire.set_header(name, value.encode())
        return forward

    @override
    def _refuse(self, refusal: Refusal, now: float, took: float = 0.0, param: str | None = None) -> Reply:
        reply = super()._refuse(refusal, now, took, param)
        asked = self._asked or self._asks.asked
        if self._trace is not None and asked is not None:
            times = (self._asked_at, now + took)
            self._trace.decided(self.record, asked, None, times, self._waited_since)
        return reply

    @override
    def ended(self, ending: Ending, now: float) -> None:
        """Complete the record, and end the trace."""
        try:
            super().ended(ending, now)
        finally:
            trace, self._trace = self._trace, None
            if trace is not None:
                trace.ended(self.record)


class TracedHandler(ProcessHandler[Any]):
    """A `ProcessHandler` that passes the trace context of the call's metadata on."""

    __slots__ = ()

    @override
    def opened(self, metadata: Metadata) -> None:
        """Keep the context for the exchange's processor."""
        processor = self._exchange.processor
        if isinstance(processor, TracedPicking):
            processor.context = {
                name: value for name, value in metadata if name in _CONTEXT and isinstance(value, str)
            }
