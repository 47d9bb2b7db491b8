"""Drain times, worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_subscriber.planning import Load, Verdict, plan


def test_a_backlog_drains_at_its_rate_and_the_last_job_takes_its_worst() -> None:
    # 1000 jobs; 5 attempts a second of which a fifth is made again: 4 jobs a second, 250 s, and 30 s more.
    made = plan(Load(backlog=1000, attempts_per_s=5.0, retry_share=0.2, worst_s=30.0), deadline_s=300.0)
    assert made.jobs_per_s == pytest.approx(4.0)
    assert made.drain_s == pytest.approx(280.0)
    assert made.spare_s == pytest.approx(20.0)
    assert made.verdict is Verdict.ON_TIME
    # 1000 jobs in the 270 s that are left before the last one's worst time.
    assert made.needed_jobs_per_s == pytest.approx(1000 / 270)


def test_without_a_measured_rate_it_is_requests_in_flight_over_their_mean_time() -> None:
    # 20 in flight of 4 s each: 5 a second.
    assert plan(Load(backlog=100, in_flight=20, mean_s=4.0)).drain_s == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("deadline_s", "retention_s", "verdict"),
    [
        (None, None, Verdict.ON_TIME),
        (100.0, None, Verdict.ON_TIME),
        (99.0, None, Verdict.LATE),
        (None, 100.0, Verdict.ON_TIME),
        (None, 99.0, Verdict.LOST),
        (99.0, 99.0, Verdict.LOST),
    ],
)
def test_the_drain_time_is_held_against_deadline_and_retention(
    deadline_s: float | None, retention_s: float | None, verdict: Verdict
) -> None:
    load = Load(backlog=100, attempts_per_s=1.0)
    assert plan(load, deadline_s=deadline_s, retention_s=retention_s).verdict is verdict


def test_an_old_job_may_be_dropped_though_the_backlog_is_short() -> None:
    load = Load(backlog=1, attempts_per_s=1.0, oldest_age_s=590.0, worst_s=20.0)
    made = plan(load, retention_s=600.0)
    assert made.verdict is Verdict.LOST
    assert made.retention_spare_s == pytest.approx(-10.0)


@pytest.mark.parametrize("load", [Load(backlog=1), Load(backlog=1, attempts_per_s=5.0, retry_share=1.0)])
def test_nothing_done_is_stuck(load: Load) -> None:
    made = plan(load, deadline_s=100.0)
    assert (made.verdict, made.drain_s) == (Verdict.STUCK, math.inf)


def test_an_empty_queue_is_on_time() -> None:
    made = plan(Load(backlog=0, oldest_age_s=5.0), deadline_s=0.0, retention_s=1.0)
    assert (made.verdict, made.drain_s, made.needed_jobs_per_s) == (Verdict.ON_TIME, 0.0, 0.0)


def test_no_rate_is_enough_when_the_worst_job_is_longer_than_the_time_left() -> None:
    made = plan(Load(backlog=1, attempts_per_s=100.0, worst_s=60.0), deadline_s=50.0)
    assert (made.verdict, made.needed_jobs_per_s) == (Verdict.LATE, math.inf)


@given(
    backlog=st.integers(1, 10**6),
    rate=st.floats(0.01, 1000),
    share=st.floats(0, 0.9),
    worst=st.floats(0, 1000),
    deadline=st.floats(1001, 10**7),
)
def test_the_needed_rate_is_what_just_ends_at_the_deadline(
    backlog: int, rate: float, share: float, worst: float, deadline: float
) -> None:
    load = Load(backlog=backlog, attempts_per_s=rate, retry_share=share, worst_s=worst)
    needed = plan(load, deadline_s=deadline).needed_jobs_per_s
    assert needed is not None
    enough = Load(backlog=backlog, attempts_per_s=needed, worst_s=worst)
    assert plan(enough, deadline_s=deadline).drain_s == pytest.approx(deadline)
    more = Load(backlog=backlog, attempts_per_s=rate * 2, retry_share=share, worst_s=worst)
    assert plan(more).drain_s <= plan(load).drain_s
