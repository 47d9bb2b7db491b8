"""Traces of requests through OpenTelemetry's SDK, exported over OTLP (HTTP, protobuf).

Nothing of OpenTelemetry is imported before `start_tracing` is called. The exporter sends from a thread of its
own and holds at most 2,048 spans; further ones are dropped while the collector does not answer.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from endpoint_picker.decision import Decision
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest, Timed
from ext_proc.processor import Ending
from inference_api.release import release_version

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

#: Name of the span from the request's headers to the end of the response, and of its child, the decision.
REQUEST_SPAN: Final = "gateway.request"
DECISION_SPAN: Final = "gateway.request_orchestration"
#: Name of the span of a decision's wait, a child of the decision's.
QUEUE_SPAN: Final = "llm_d.epp.queue"

#: Longest request id and other name in a span, in characters: clients choose them, and spans are held.
NAME_LIMIT: Final = 256

_FLUSH_S: Final = 3.0
_EXPORT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Where spans go, and how many."""

    endpoint: str
    """URL of the collector without the path /v1/traces."""
    sampling_percent: int
    """Share of the requests without a sampled parent that is traced, 0 to 100."""
    service_name: str
    pool: str
    """"namespace/name" of the pool."""


class Tracing:
    """Makes the spans of requests. Times are of the exchanges' clock, in seconds."""

    __slots__ = ("_epoch_ns", "_extract", "_inject", "_otel", "_provider", "_tracer")

    def __init__(
        self, provider: "TracerProvider", clock: Callable[[], float], wall_ns: Callable[[], int]
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # Its warnings repeat what clients send in traceparent and tracestate: a line for each bad header.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        propagator = TraceContextTextMapPropagator()
        self._otel: Any = trace
        self._extract = propagator.extract
        self._inject = propagator.inject
        self._provider = provider
        self._tracer = provider.get_tracer("headroom-epp", release_version())
        self._epoch_ns = wall_ns() - int(clock() * 1e9)

    def begin(self, carrier: Mapping[str, str], now: float) -> "RequestTrace | None":
        """Begin the trace of a request; None when its parent is not sampled.

        `carrier` has the parent's traceparent and tracestate. Without a parent the sampler decides.
        """
        context = self._extract(carrier)
        parent = self._otel.get_current_span(context).get_span_context()
        if parent.is_valid and not parent.trace_flags.sampled:
            return None
        kind = self._otel.SpanKind.SERVER
        span = self._tracer.start_span(REQUEST_SPAN, context, kind=kind, start_time=self.ns(now))
        return RequestTrace(self, span)

    def ns(self, at: float) -> int:
        """Return a time of the exchanges' clock as nanoseconds since the epoch."""
        return self._epoch_ns + int(at * 1e9)

    def child(self, name: str, context: "Context", begin: float, attributes: Mapping[str, Any]) -> "Span":
        """Return a span that the caller ends."""
        span: Span = self._tracer.start_span(name, context, start_time=self.ns(begin), attributes=attributes)
        return span

    def context_of(self, span: "Span") -> "Context":
        """Return the context in which `span` is the parent."""
        context: Context = self._otel.set_span_in_context(span)
        return context

    def headers_of(self, span: "Span") -> tuple[tuple[str, str], ...]:
        """Return the headers that make the span the parent of what the model server does."""
        carrier: dict[str, str] = {}
        self._inject(carrier, self.context_of(span))
        return tuple(carrier.items())

    def failed(self, why: str) -> Any:
        """Return the status of a span that failed."""
        return self._otel.Status(self._otel.StatusCode.ERROR, why)

    async def flush(self) -> None:
        """Export what is held, for `_FLUSH_S` at most."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def flush() -> None:
            self._provider.force_flush()
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(done.set)

        # The SDK's flush has no bound while a collector hangs. The process ends without waiting for a daemon
        # thread; it would wait for one of `asyncio.to_thread`.
        threading.Thread(target=flush, name="traces", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await done.wait()


class RequestTrace:
    """The spans of one request."""

    __slots__ = ("_span", "_tracing", "headers")

    def __init__(self, tracing: Tracing, span: "Span") -> None:
        self._tracing = tracing
        self._span = span
        self.headers = tracing.headers_of(span)
        """(name, value) of the headers that the request takes on to the model server."""

    def decided(
        self,
        record: Record,
        request: InferenceRequest,
        decision: Decision | None,
        times: tuple[float, float],
        waited_since: float | None,
    ) -> None:
        """Add the span of the decision, from its request's arrival to the answer, and its children."""
        if not self._span.is_recording():
            return
        tracing, (begin, end) = self._tracing, times
        attributes = {"target_model": record.model[:NAME_LIMIT], "request_prio": record.priority}
        if decision is not None:
            attributes |= {
                "llm_d.epp.endpoint": decision.endpoint,
                "llm_d.epp.destination": decision.destination,
                "llm_d.epp.prefix_hit": decision.prefix_hit,
            }
        span = tracing.child(DECISION_SPAN, tracing.context_of(self._span), begin, attributes)
        inner = tracing.context_of(span)
        timed: Sequence[Timed] = request.timed or ()
        if waited_since is not None:
            timed = [(QUEUE_SPAN, waited_since, end), *timed]
        for name, child_begin, child_end in timed:
            tracing.child(name, inner, child_begin, {}).end(tracing.ns(child_end))
        if decision is None and record.outcome is not None:
            span.set_status(tracing.failed(record.outcome.value))
        span.end(tracing.ns(end))

    def ended(self, record: Record) -> None:
        """Set what is known of the whole exchange and end its span."""
        span, tracing = self._span, self._tracing
        if not span.is_recording():
            return
        attributes: dict[str, Any] = {
            "gen_ai.request.model": record.model[:NAME_LIMIT],
            "gen_ai.request.id": record.request_id[:NAME_LIMIT],
            "llm_d.epp.objective": record.objective[:NAME_LIMIT],
            "llm_d.epp.ending": record.ending.value if record.ending else "",
            "llm_d.epp.outcome": record.outcome.value if record.outcome else "",
            "llm_d.epp.served_by": record.served_by[:NAME_LIMIT],
            "http.response.status_code": record.status,
        }
        if record.usage is not None:
            attributes |= {
                "gen_ai.usage.input_tokens": record.usage.input_tokens,
                "gen_ai.usage.output_tokens": record.usage.output_tokens,
                "gen_ai.usage.cached_tokens": record.usage.cached_tokens,
            }
        span.set_attributes(attributes)
        if record.first_byte_at:
            span.add_event("first_byte", timestamp=tracing.ns(record.first_byte_at))
        if (
            record.outcome is not Outcome.PICKED
            or record.ending is not Ending.COMPLETED
            or record.status >= 500
        ):
            why = record.ending if record.outcome in (None, Outcome.PICKED) else record.outcome
            span.set_status(tracing.failed(why.value if why else ""))
        span.end(tracing.ns(record.ended_at))


def start_tracing(
    settings: TracingSettings, clock: Callable[[], float], wall_ns: Callable[[], int]
) -> Tracing:
    """Return the tracing of this process, with a thread that exports. The SDK also reads OTEL_* variables."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from endpoint_picker.observability.otlp import OtlpExporter

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(settings.sampling_percent / 100)),
        resource=Resource.create({SERVICE_NAME: settings.service_name, "headroom.pool": settings.pool}),
        shutdown_on_exit=False,
    )
    exporter = OtlpExporter(f"{settings.endpoint.rstrip('/')}/v1/traces", _EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, clock, wall_ns)
