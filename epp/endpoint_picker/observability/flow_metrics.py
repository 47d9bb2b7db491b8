"""The metrics of flow control: counts and times of waits, and gauges read from the queue. Pure.

Fairness ids are chosen by clients. `MAX_IDS` of them have histograms of their own for the life of the
process, and `MAX_FLOWS` flows gauges at a time; the others are counted as "other".
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from endpoint_picker.flowcontrol.control import FlowControl
from endpoint_picker.observability.metrics import MAX_NAME, OTHER, PickerMetrics
from endpoint_picker.observability.series import Buckets, Count, Labels
from endpoint_picker.outcomes import Outcome

MAX_IDS: Final = 100
MAX_FLOWS: Final = 200
#: Pairs of fairness id and model that have a histogram.
_MAX_PAIRS: Final = 400

#: What the llm-d router calls an end in the queue, and before it.
_EVICTED: Final = {
    Outcome.PICKED: "Dispatched",
    Outcome.TTL_EXPIRED: "EvictedTTL",
    Outcome.NO_ENDPOINTS: "EvictedNoEndpoints",
    Outcome.CANCELLED: "EvictedContextCancelled",
}
_REJECTED: Final = {
    Outcome.PICKED: "Dispatched",
    Outcome.SATURATED: "RejectedCapacity",
    Outcome.NO_ENDPOINTS: "RejectedNoEndpoints",
}


class FlowMetrics:
    """A `FlowObserver`; it adds its families to the picker's."""

    __slots__ = (
        "_durations",
        "_flow",
        "_ids",
        "_pairs",
        "_pool",
        "_requests",
        "_revocations",
        "_totals",
        "_waits",
    )

    def __init__(self, metrics: PickerMetrics, pool: str, flow: Callable[[], FlowControl | None]) -> None:
        """`flow` returns the flow control in use; while it returns None the gauges have no series."""
        self._pool = pool
        self._flow = flow
        self._ids: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        self._durations = metrics.add_histogram("flow_control_request_queue_duration_seconds")
        self._requests = metrics.add_counts("flow_control_requests_total")
        self._revocations = metrics.add_counts("flow_control_revocations_issued_total")
        self._waits: dict[tuple[str, int, str, str], Buckets] = {}
        self._totals: dict[tuple[int, str], Count] = {}
        for name, read in (
            ("flow_control_queue_size", lambda: self._sizes(in_bytes=False)),
            ("flow_control_queue_bytes", lambda: self._sizes(in_bytes=True)),
            ("flow_control_pool_saturation", self._saturation),
            ("flow_control_stale_endpoints", self._stale),
            ("flow_control_failed_open_endpoints", self._failed_open),
            ("flow_control_capacity_utilization_requests", lambda: self._utilization(in_bytes=False)),
            ("flow_control_capacity_utilization_bytes", lambda: self._utilization(in_bytes=True)),
            ("flow_control_global_capacity_utilization_requests", lambda: self._whole(in_bytes=False)),
            ("flow_control_global_capacity_utilization_bytes", lambda: self._whole(in_bytes=True)),
            ("flow_control_oldest_wait_seconds", self._oldest),
            ("flow_control_dispatch_rate", self._rate),
            ("flow_control_flows", self._flows),
        ):
            metrics.read_each(name, read)

    # The observer.

    def over(self, tenant: str, priority: int, model: str, outcome: Outcome, waited_s: float | None) -> None:
        """Count the end of a wait; None: it did not wait."""
        if waited_s is None:
            how = _REJECTED.get(outcome, "RejectedOther")
        else:
            how = _EVICTED.get(outcome, "EvictedOther")
        total = self._totals.get((priority, how))
        if total is None:
            total = self._requests.labels(how, str(priority), self._pool)
            self._totals[priority, how] = total
        total.value += 1
        tenant, model = self._bounded(tenant, model)
        key = (tenant, priority, how, model)
        wait = self._waits.get(key)
        if wait is None:
            wait = self._durations.labels(tenant, str(priority), how, self._pool, model, model)
            self._waits[key] = wait
        wait.observe(waited_s or 0.0)

    def revoked(self, priority: int) -> None:
        """Count a request that was taken back from its server."""
        self._revocations.labels(str(priority), self._pool).value += 1

    def _bounded(self, tenant: str, model: str) -> tuple[str, str]:
        if tenant not in self._ids:
            if len(self._ids) >= MAX_IDS:
                tenant = OTHER
            else:
                self._ids.add(tenant)
        pair = (tenant, model)
        if pair not in self._pairs:
            if len(self._pairs) >= _MAX_PAIRS or len(model) > MAX_NAME:
                return OTHER, OTHER
            self._pairs.add(pair)
        return pair

    # Gauges.

    def _sizes(self, *, in_bytes: bool) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is None:
            return
        found: dict[Labels, float] = {}
        for band in flow.queue.bands:
            priority = str(band.priority)
            for queued in band.by_age:
                model = queued.request.model
                labels = (queued.tenant, priority, self._pool, model, model)
                if labels not in found and (len(found) >= MAX_FLOWS or len(model) > MAX_NAME):
                    labels = (OTHER, priority, self._pool, OTHER, OTHER)
                found[labels] = found.get(labels, 0.0) + (queued.size if in_bytes else 1)
        yield from found.items()

    def _saturation(self) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is not None:
            flow.look()
            for stage, load in sorted(flow.gate.stages.items()):
                yield (self._pool, stage), load

    def _stale(self) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is not None:
            yield (flow.settings.detector.type_name,), float(flow.gate.stale)

    def _failed_open(self) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is not None:
            yield (self._pool,), float(flow.gate.failed_open)

    def _utilization(self, *, in_bytes: bool) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        for band in () if flow is None else flow.queue.bands:
            limits = band.settings
            part = band.bytes / limits.max_bytes if in_bytes else band.requests / limits.max_requests
            yield (str(band.priority), self._pool), part

    def _whole(self, *, in_bytes: bool) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is None:
            return
        used, most = (
            (flow.queue.bytes, flow.queue.settings.max_bytes)
            if in_bytes
            else (flow.queue.requests, flow.queue.settings.max_requests)
        )
        if most < inf:
            yield (self._pool,), used / most

    def _oldest(self) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is not None:
            now = flow.now
            for band in flow.queue.bands:
                yield (str(band.priority), self._pool), band.oldest_age(now, -inf)

    def _rate(self) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is not None:
            yield (self._pool,), flow.queue.rate.per_second(flow.now)

    def _flows(self) -> Iterator[tuple[Labels, float]]:
        flow = self._flow()
        if flow is not None:
            known = sum(len(band.flows) for band in flow.queue.bands)
            idle = flow.queue.idle_flows
            yield (self._pool, "busy"), float(known - idle)
            yield (self._pool, "idle"), float(idle)
