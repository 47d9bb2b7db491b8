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
QUEUE_LENGTH: Final = Gauge("headroom_operator_queue_length", "Pools due for a pass.", registry=REGISTRY)
POOLS: Final = Gauge("headroom_operator_pools", "Pools by stance.", ("stance",), registry=REGISTRY)
RESYNCS: Final = Counter("headroom_operator_resyncs", "Full lists by result.", ("result",), registry=REGISTRY)
WATCH_STARTS: Final = Counter(
    "headroom_operator_watch_starts", "Times that the watches were started.", registry=REGISTRY
)
WATCH_RESTARTS: Final = Counter(
    "headroom_operator_watch_restarts",
    "Times that the watch thread was given up and begun anew, by what was noticed.",
    ("reason",),
    registry=REGISTRY,
)
KINDS_NOT_WATCHED: Final = Gauge(
    "headroom_operator_kinds_not_watched", "Kinds without an open watch.", registry=REGISTRY
)
API_REACHABLE: Final = Gauge(
    "headroom_operator_api_reachable",
    "1 while the API server answers full lists and every watch is open.",
    registry=REGISTRY,
)
PART_RESTARTS: Final = Counter(
    "headroom_operator_part_restarts",
    "Times that a background part ended and was begun anew.",
    ("part",),
    registry=REGISTRY,
)
LOG_LINES_HELD_BACK: Final = Counter(
    "headroom_operator_log_lines_held_back",
    "Warnings and errors that were not logged because they repeated too often.",
    registry=REGISTRY,
)
STANDS_ASIDE: Final = Gauge(
    "headroom_operator_stands_aside",
    "Older operators to which this one leaves namespaces that both name.",
    registry=REGISTRY,
)
YOUNGER_OPERATORS: Final = Gauge(
    "headroom_operator_younger_operators",
    "Younger operators that name namespaces of this one, and leave them to it.",
    registry=REGISTRY,
)
DENIED_RIGHTS: Final = Gauge(
    "headroom_operator_denied_rights", "Rights that the operator needs and does not have.", registry=REGISTRY
)
