"""What an answer means for a job."""

import pytest

from batch_contracts import make_job
from batch_subscriber.jobs import Cause
from batch_subscriber.retries import (
    Limits,
    Next,
    after_answer,
    after_failure,
    backoff,
    before_sending,
    expires_at,
    retry_after,
)

LIMITS = Limits(attempts=3, deliveries=5, age_s=100.0, backoff_s=1.0, longest_backoff_s=10.0)


@pytest.mark.parametrize(
    ("status", "wait", "is_outage", "expected"),
    [
        (200, None, False, Next.FINISH),
        (204, None, False, Next.FINISH),
        (429, None, False, Next.LATER),
        (503, 5.0, False, Next.LATER),
        (503, None, False, Next.RETRY),
        (503, None, True, Next.LATER),
        (502, None, True, Next.LATER),
        (500, None, False, Next.RETRY),
        (500, None, True, Next.RETRY),
        (408, None, False, Next.RETRY),
        (400, None, False, Next.END),
        (404, None, True, Next.END),
        (301, None, False, Next.END),
    ],
)
def test_a_status_decides(status: int, wait: float | None, is_outage: bool, expected: Next) -> None:
    decision = after_answer(make_job(), status, wait, 0.5, LIMITS, is_outage=is_outage)
    assert decision.next is expected


def test_the_last_attempt_ends_the_job() -> None:
    job = make_job(attempts=2)
    decision = after_failure(job, "ServerDisconnectedError", 0.5, LIMITS, is_outage=False)
    assert (decision.next, decision.cause) == (Next.END, Cause.EXHAUSTED)
    assert decision.detail == "3 attempts failed, the last: ServerDisconnectedError"
    assert after_answer(job, 429, None, 0.5, LIMITS, is_outage=False).next is Next.LATER


def test_retry_after_is_a_lower_bound() -> None:
    delays = [
        after_answer(make_job(), 429, 10.0, r, LIMITS, is_outage=False).delay_s for r in (0.0, 0.5, 0.99)
    ]
    assert delays == [10.0, 10.5, pytest.approx(10.99)]


def test_back_off_doubles_to_its_bound_and_is_spread() -> None:
    assert [backoff(attempt, 0.5, LIMITS) for attempt in (1, 2, 3, 4, 5, 500)] == [1, 2, 4, 8, 10, 10]
    assert (backoff(3, 0.0, LIMITS), backoff(3, 1.0, LIMITS)) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("changes", "deliveries", "now", "cause"),
    [
        ({}, 1, 1050.0, None),
        ({"deadline": 1050.0}, 1, 1050.0, Cause.EXPIRED),
        ({}, 1, 1101.0, Cause.EXPIRED),
        ({}, 5, 1050.0, None),
        ({}, 6, 1050.0, Cause.POISON),
        # Three deliveries are explained by attempts that failed.
        ({"attempts": 3}, 8, 1050.0, None),
        ({"submitted_at": 0.0}, 1, 9e9, None),
    ],
)
def test_what_must_not_be_sent(
    changes: dict[str, object], deliveries: int, now: float, cause: Cause | None
) -> None:
    decision = before_sending(make_job(1, **changes), deliveries, now, LIMITS)
    assert (None if decision is None else decision.cause) is cause


def test_a_job_expires_by_its_deadline_or_its_age() -> None:
    assert expires_at(make_job(1), LIMITS) == 1101.0
    assert expires_at(make_job(1, deadline=1050.0), LIMITS) == 1050.0
    assert expires_at(make_job(1, deadline=9000.0), LIMITS) == 1101.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 30.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("9" * 400, 9999999999.0),
    ],
)
def test_retry_after_has_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, 30.0) == seconds
