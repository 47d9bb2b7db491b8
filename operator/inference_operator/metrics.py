"""The operator's metrics: one table of names."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry()

PASSES: Final = Counter(
    "headroom_operator_passes", "Reconcile passes by result.", ("result",), registry=REGISTRY
)
PASS_SECONDS: Final = Histogram(
    "headroom_operator_pass_seconds",
    "Duration of reconcile passes.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 30),
    registry=REGISTRY,
)
WRITES: Final = Counter(
    "headroom_operator_writes", "Objects written, by kind and verb.", ("kind", "verb"), registry=REGISTRY
)
QUEUE_LENGTH: Final = Gauge("headroom_operator_queue_length", "Pools waiting for a pass.", registry=REGISTRY)
POOLS: Final = Gauge("headroom_operator_pools", "Pools by stance.", ("stance",), registry=REGISTRY)
RESYNCS: Final = Counter("headroom_operator_resyncs", "Full lists by result.", ("result",), registry=REGISTRY)
WATCH_STARTS: Final = Counter(
    "headroom_operator_watch_starts", "Times that the watches were started.", registry=REGISTRY
)
DENIED_RIGHTS: Final = Gauge(
    "headroom_operator_denied_rights", "Rights that the operator needs and does not have.", registry=REGISTRY
)
