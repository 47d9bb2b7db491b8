"""Every metric family of `headroom-batch`. The one home of their names."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

PREFIX: Final = "headroom_batch_"


class Kind(Enum):
    """The type that Prometheus reads."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One family."""

    name: str
    """Without PREFIX; a counter's without `_total`."""
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_JOB_SECONDS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600)

FAMILIES: Final = (
    Family("jobs_received", Kind.COUNTER, "Jobs that the queue handed out, jobs that came again included."),
    Family("requests", Kind.COUNTER, "Requests to the gateway, by status or `none`.", ("status",)),
    Family("results", Kind.COUNTER, "Results written, by cause; `none` is an answer.", ("cause",)),
    Family("results_known", Kind.COUNTER, "Jobs whose result was there already; nothing was written."),
    Family("retries", Kind.COUNTER, "Requests to be sent again: `later` or `retry`.", ("kind",)),
    Family("dead_letters", Kind.COUNTER, "Jobs that went to the dead letters, by cause.", ("cause",)),
    Family("aborted_requests", Kind.COUNTER, "Requests given up here, by reason.", ("reason",)),
    Family("deliveries_lost", Kind.COUNTER, "Jobs in hand that another process may have by now."),
    Family("queue_errors", Kind.COUNTER, "Calls that the queue did not answer."),
    Family("store_errors", Kind.COUNTER, "Calls that the result store did not answer."),
    Family("in_flight_requests", Kind.GAUGE, "Requests that were sent and have not ended."),
    Family("flow_limit", Kind.GAUGE, "Requests that may be in flight at present."),
    Family("pool_saturation", Kind.GAUGE, "Saturation that the picker shows; NaN while unknown."),
    Family("pool_replicas", Kind.GAUGE, "Endpoints that the picker shows as ready; NaN while unknown."),
    Family("jobs_in_hand", Kind.GAUGE, "Jobs that this process holds."),
    Family("bytes_in_hand", Kind.GAUGE, "Bytes of their bodies."),
    Family("queue_jobs", Kind.GAUGE, "Jobs in the queue, `waiting` or `held`; NaN: unknown.", ("state",)),
    Family("oldest_job_age_seconds", Kind.GAUGE, "Age of the oldest job; 0 without one."),
    Family("is_draining", Kind.GAUGE, "1 after SIGTERM."),
    Family("request_seconds", Kind.HISTOGRAM, "From sending to the whole answer.", (), _SECONDS),
    Family("job_seconds", Kind.HISTOGRAM, "From acceptance to the result.", (), _JOB_SECONDS),
)
