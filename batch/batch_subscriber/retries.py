"""What becomes of a job: sent, tried again, or ended. Pure; clock and randomness are passed in."""

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

from batch_subscriber.jobs import Cause, Job

#: Longest Retry-After that is obeyed, seconds.
LONGEST_RETRY_AFTER_S: Final = 3600.0

#: Answers of a pool that is full or away; those below 500 whose cause may pass; those of a proxy that reached
#: no server.
BUSY_STATUSES: Final = frozenset({429, 503})
PASSING_STATUSES: Final = frozenset({408, 409, 425})
UNREACHED_STATUSES: Final = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one job's life."""

    attempts: int = 5
    """Attempts that may fail."""
    deliveries: int = 20
    """Deliveries, beside those that a failed attempt explains, after which a job counts as poison."""
    age_s: float = 7 * 86400.0
    """Longest time since the job was accepted."""
    backoff_s: float = 1.0
    """Mean wait after the first failed attempt; it doubles with each further one."""
    longest_backoff_s: float = 60.0
    outage_s: float = 30.0
    """Failures count against a job only while the pool has served another within this time."""


class Next(Enum):
    """What to do with a job."""

    FINISH = "finish"
    """Keep the answer as its result."""
    LATER = "later"
    """Send it again after a time; the attempt does not count."""
    RETRY = "retry"
    """Note the failure, and send it again after a time."""
    END = "end"
    """Keep a result with a cause; the job goes to the dead letters, unless it was cancelled."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, when, and why."""

    next: Next
    delay_s: float = 0.0
    cause: Cause = Cause.NONE
    detail: str = ""


def before_sending(job: Job, deliveries: int, now: float, limits: Limits) -> Decision | None:
    """Return how a job ends that must not be sent (any more); None: send it. `now` is Unix time."""
    if job.deadline is not None and now >= job.deadline:
        return Decision(Next.END, cause=Cause.EXPIRED, detail="its deadline has passed")
    if job.submitted_at and now - job.submitted_at >= limits.age_s:
        return Decision(Next.END, cause=Cause.EXPIRED, detail=f"older than {limits.age_s:g} s")
    if deliveries - job.attempts > limits.deliveries:
        return Decision(
            Next.END, cause=Cause.POISON, detail=f"received {deliveries} times without coming to an end"
        )
    return None


def expires_at(job: Job, limits: Limits) -> float:
    """Return the Unix time at which a job expires."""
    by_age = job.submitted_at + limits.age_s if job.submitted_at else float("inf")
    return by_age if job.deadline is None else min(by_age, job.deadline)


def after_answer(
    job: Job, status: int, retry_after_s: float | None, random: float, limits: Limits, *, is_outage: bool
) -> Decision:
    """Return what an answer means. `random` is in [0, 1); `is_outage`: the pool serves no one at present."""
    if 200 <= status < 300:
        return Decision(Next.FINISH)
    if status == 429 or (status == 503 and retry_after_s is not None):
        delay = backoff(job.attempts + 1, random, limits)
        if retry_after_s is not None:
            # A little later than asked for, and not all at one time.
            delay = min(retry_after_s, LONGEST_RETRY_AFTER_S) * (1.0 + 0.1 * random)
        return Decision(Next.LATER, delay, detail=f"status {status}")
    if status in PASSING_STATUSES or status >= 500:
        # A proxy answers 503 also when the server died of the request, so that it counts without Retry-After.
        is_outage = is_outage and status in UNREACHED_STATUSES
        return _failed(job, f"status {status}", random, limits, is_outage=is_outage)
    return Decision(Next.END, cause=Cause.REFUSED, detail=f"the gateway answered with status {status}")


def after_failure(job: Job, fault: str, random: float, limits: Limits, *, is_outage: bool) -> Decision:
    """Return what a request without a whole answer means; `fault` names the kind of error."""
    return _failed(job, fault, random, limits, is_outage=is_outage)


def _failed(job: Job, fault: str, random: float, limits: Limits, *, is_outage: bool) -> Decision:
    delay = backoff(job.attempts + 1, random, limits)
    if is_outage:
        return Decision(Next.LATER, delay, detail=fault)
    if job.attempts + 1 >= limits.attempts:
        return Decision(
            Next.END, cause=Cause.EXHAUSTED, detail=f"{job.attempts + 1} attempts failed, the last: {fault}"
        )
    return Decision(Next.RETRY, delay, detail=fault)


def backoff(attempt: int, random: float, limits: Limits) -> float:
    """Return the wait after a failed attempt, counted from 1: exponential, half to one and a half of it."""
    mean = min(limits.backoff_s * 2.0 ** min(attempt - 1, 60), limits.longest_backoff_s)
    return mean * (0.5 + random)


def retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds of a Retry-After header, which has seconds or a date; None without a usable one.

    RFC 9110, 10.2.3. `now` is Unix time.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, when.timestamp() - now)
