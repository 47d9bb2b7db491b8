"""What is kept of a job's end, and what its request shows of the pool. Pure."""

from dataclasses import replace
from typing import Final

from batch_subscriber.answers import Answer
from batch_subscriber.flow import Outcome
from batch_subscriber.jobs import MAX_CAUSE_CHARS, Cause, DeadLetter, Job, Result, dead_letter_key
from batch_subscriber.retries import BUSY_STATUSES, Decision, Next

#: Decisions about a request that was given up.
CANCELLED: Final = Decision(Next.END, cause=Cause.CANCELLED, detail="its group was cancelled")
DRAINED: Final = Decision(Next.LATER, detail="the subscriber ends")
#: Decision about a job whose time is over before its answer is whole.
CUT_OFF: Final = Decision(
    Next.END, cause=Cause.EXPIRED, detail="its time was over before the answer was whole"
)


def outcome_of(answer: Answer | None, decision: Decision) -> Outcome:
    """Return what the end of a request says about the pool."""
    if answer is None:
        return Outcome.ABORTED if decision in (CANCELLED, DRAINED) else Outcome.FAILED
    if answer.status in BUSY_STATUSES:
        return Outcome.BUSY
    if decision.next is Next.RETRY or decision.cause is Cause.EXHAUSTED:
        return Outcome.FAILED
    # An answer of 4xx comes from a pool that works.
    return Outcome.SERVED


def result_of(job: Job, decision: Decision, answer: Answer | None, now: float) -> Result:
    """Return the result of a job that ends. `now` is Unix time."""
    return Result(
        job_id=job.id,
        generation=job.generation,
        group=job.group,
        status=0 if answer is None else answer.status,
        content_type="" if answer is None else answer.content_type,
        body=b"" if answer is None else answer.body,
        cause=decision.cause,
        detail=decision.detail if decision.cause is not Cause.NONE else "",
        attempts=job.attempts,
        submitted_at=job.submitted_at,
        finished_at=now,
    )


def refused_result(result: Result, fault: str) -> Result:
    """Return what is kept in place of a result that the store refuses."""
    detail = f"the result store refused the answer: {fault}"[:MAX_CAUSE_CHARS]
    return replace(result, content_type="", body=b"", cause=Cause.EXHAUSTED, detail=detail)


def letter_of(job: Job, cause: Cause, detail: str, deliveries: int, now: float) -> DeadLetter | None:
    """Return the dead letter of a job that ends; None: it has none."""
    if cause in (Cause.NONE, Cause.CANCELLED):
        return None
    if cause is Cause.EXHAUSTED:
        job = job.failed(now, detail)
    return DeadLetter(
        key=dead_letter_key(job), cause=cause, detail=detail, at=now, job=job, deliveries=deliveries
    )
