"""When a backlog will be done, against its deadline and against what the queue keeps. Pure."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: The share of retries above which nothing gets done that a plan could count on.
_MOST_RETRIES: Final = 0.99


class Verdict(Enum):
    """What a plan comes to, worst last."""

    ON_TIME = "on time"
    LATE = "late"
    """Some jobs end after the deadline."""
    LOST = "lost"
    """The queue drops some jobs before they are done."""
    STUCK = "stuck"
    """Nothing is done at present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is known of a queue and of the work on it."""

    backlog: int
    """Jobs that are not done, held ones included."""
    attempts_per_s: float | None = None
    """Attempts that end, a second, as measured; None takes `in_flight` over `mean_s`."""
    in_flight: int = 0
    """Requests that are in flight together."""
    mean_s: float = 0.0
    """Average time of an attempt, seconds."""
    worst_s: float = 0.0
    """Longest time of an attempt, seconds."""
    retry_share: float = 0.0
    """Share of attempts that have to be made again, [0, 1]."""
    oldest_age_s: float = 0.0
    """Age of the oldest job, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a load comes to. Times are seconds from now; inf: never."""

    jobs_per_s: float
    drain_s: float
    """Until the last job is done: all attempts at the rate, and the last one at its worst."""
    verdict: Verdict
    spare_s: float | None
    """Deadline less drain time; negative when late, None without a deadline."""
    retention_spare_s: float | None
    """Time that the queue keeps a job less the age that one reaches; None when the queue keeps all."""
    needed_jobs_per_s: float | None
    """Jobs a second with which the backlog ends at the deadline; None without one, inf: no rate is enough."""


def plan(load: Load, *, deadline_s: float | None = None, retention_s: float | None = None) -> Plan:
    """Return what a load comes to.

    An attempt fails with the retry share r, so that a job takes 1 / (1 - r) attempts on average and
    `jobs_per_s` is the rate of attempts times (1 - r). Drain time = backlog / jobs_per_s + worst time of an
    attempt, which the last job may take. Jobs are done oldest first: the newest of today's is the last, and a
    job reaches at most the greater of today's oldest age and the drain time, plus the worst time.
    """
    rate = _attempts(load)
    share = min(max(load.retry_share, 0.0), 1.0)
    jobs_per_s = 0.0 if share > _MOST_RETRIES else rate * (1.0 - share)
    if load.backlog <= 0:
        drain_s = 0.0
    elif jobs_per_s <= 0.0:
        drain_s = math.inf
    else:
        drain_s = load.backlog / jobs_per_s + load.worst_s
    spare_s = None if deadline_s is None else deadline_s - drain_s
    oldest = max(load.oldest_age_s + load.worst_s, drain_s) if load.backlog > 0 else 0.0
    retention_spare_s = None if retention_s is None else retention_s - oldest
    return Plan(
        jobs_per_s=jobs_per_s,
        drain_s=drain_s,
        verdict=_verdict(drain_s, spare_s, retention_spare_s),
        spare_s=spare_s,
        retention_spare_s=retention_spare_s,
        needed_jobs_per_s=_needed(load, deadline_s),
    )


def _attempts(load: Load) -> float:
    if load.attempts_per_s is not None:
        return max(0.0, load.attempts_per_s)
    return load.in_flight / load.mean_s if load.mean_s > 0 else 0.0


def _verdict(drain_s: float, spare_s: float | None, retention_spare_s: float | None) -> Verdict:
    if math.isinf(drain_s):
        return Verdict.STUCK
    if retention_spare_s is not None and retention_spare_s < 0:
        return Verdict.LOST
    if spare_s is not None and spare_s < 0:
        return Verdict.LATE
    return Verdict.ON_TIME


def _needed(load: Load, deadline_s: float | None) -> float | None:
    if deadline_s is None:
        return None
    if load.backlog <= 0:
        return 0.0
    time_s = deadline_s - load.worst_s
    return load.backlog / time_s if time_s > 0 else math.inf
