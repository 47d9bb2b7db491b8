"""One priority band: its flows, its requests by age, its counts. Pure."""

from collections import OrderedDict
from math import inf

from endpoint_picker.flowcontrol.drain_rate import DrainRate
from endpoint_picker.flowcontrol.queued import Flow, Queued
from endpoint_picker.flowcontrol.settings import BandSettings


class Band:
    """The queued requests of one priority."""

    __slots__ = (
        "by_age",
        "bytes",
        "credit",
        "flows",
        "lanes",
        "priority",
        "rate",
        "requests",
        "settings",
        "ttl_s",
    )

    def __init__(self, priority: int, settings: BandSettings, ttl_s: float, now: float) -> None:
        self.priority = priority
        self.settings = settings
        self.lanes = settings.fairness.lanes()
        self.flows: dict[str, Flow] = {}
        """By fairness id: flows with a queued request, one in flight, or a standing to remember."""
        self.by_age: OrderedDict[Queued, None] = OrderedDict()
        """All its requests, the oldest first."""
        self.requests = 0
        self.bytes = 0
        self.ttl_s = min(ttl_s, settings.max_wait_s)
        """Longest wait while the pool has endpoints, seconds."""
        self.rate = DrainRate(now)
        """Of its dispatches, since it last was empty."""
        self.credit = 0.0
        """Weighted tokens that its `min_share` owes it."""

    def insert(self, queued: Queued, now: float) -> None:
        """Put a request, counted already, into its flow."""
        flow = self.flows.get(queued.tenant)
        if flow is None:
            flow = self.flows[queued.tenant] = Flow(queued.tenant, self.priority)
        flow.push(self.settings.ordering.key(queued, self.ttl_s), queued)
        if not flow.is_active:
            if not flow.blocked_by:
                self.activate(flow, now)
        elif self.lanes.compares_heads:
            head = flow.head()
            if head is not None and head[3] is queued:
                self.lanes.changed(flow)

    def extract(self, queued: Queued, now: float) -> None:
        """Take a request out of its flow; it stays counted."""
        flow = queued.flow
        if flow is None:
            return
        head = flow.head()
        was_head = head is not None and head[3] is queued
        flow.drop(queued)
        if not flow.live:
            self.deactivate(flow, now)
            flow.blocked_by = ""
        elif was_head and flow.is_active:
            self.lanes.changed(flow)
        elif was_head:  # the request that held the flow up is gone
            flow.blocked_by = ""
            self.activate(flow, now)

    def count(self, queued: Queued) -> None:
        """Count a request that begins to wait."""
        self.by_age[queued] = None
        self.requests += 1
        self.bytes += queued.size

    def uncount(self, queued: Queued) -> None:
        """Count a request no longer."""
        del self.by_age[queued]
        self.requests -= 1
        self.bytes -= queued.size

    def activate(self, flow: Flow, now: float) -> None:
        """Let the flow's head be chosen."""
        if not flow.is_active:
            flow.is_active = True
            self.lanes.activate(flow, now)

    def deactivate(self, flow: Flow, now: float) -> None:
        """Keep the flow from being chosen."""
        if flow.is_active:
            flow.is_active = False
            self.lanes.deactivate(flow, now)

    def oldest_age(self, now: float, since: float) -> float:
        """Return how long its oldest request has waited, at most since `since`; 0 when it is empty."""
        oldest = next(iter(self.by_age), None)
        return 0.0 if oldest is None else now - max(oldest.enqueued_at, since)

    def is_aged(self, now: float, since: float) -> bool:
        """Tell whether its oldest request has waited half of the longest wait."""
        most = self.settings.max_wait_s
        return most < inf and self.oldest_age(now, since) >= most / 2
