"""The gauges of a subscriber, read when the page of metrics is made."""

from collections.abc import Callable

from batch_subscriber.flow import Flow
from batch_subscriber.hand import Hand
from batch_subscriber.metrics import Metrics
from batch_subscriber.queues.interface import Backlog


def show_gauges(
    metrics: Metrics,
    flow: Flow,
    hand: Hand,
    backlog: Callable[[], Backlog],
    *,
    now: Callable[[], float],
    clock: Callable[[], float],
) -> None:
    """Have the gauges read flow, hand and backlog. `now` is the flow's clock, `clock` Unix time."""

    def age() -> float:
        oldest = backlog().oldest_submitted_at
        return 0.0 if oldest is None else max(0.0, clock() - oldest)

    show = metrics.show
    show("in_flight_requests", lambda: float(flow.in_flight))
    show("flow_limit", lambda: float(flow.limit))
    show("pool_saturation", lambda: _known(flow.reading(now()).saturation))
    show("pool_replicas", lambda: _known(flow.reading(now()).replicas))
    show("jobs_in_hand", lambda: float(len(hand)))
    show("bytes_in_hand", lambda: float(hand.size))
    show("oldest_job_age_seconds", age)
    metrics.show_each(
        "queue_jobs", {"waiting": lambda: _known(backlog().waiting), "held": lambda: _known(backlog().held)}
    )


def _known(value: float | None) -> float:
    return float("nan") if value is None else float(value)
