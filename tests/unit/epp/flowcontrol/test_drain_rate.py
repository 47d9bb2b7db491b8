"""The measured rate at which requests leave, and the Retry-After that comes from it."""

from math import inf

import pytest

from endpoint_picker.flowcontrol.drain_rate import LONGEST_S, SILENT_S, UNKNOWN_S, DrainRate


def steady(every: float, seconds: float) -> DrainRate:
    rate = DrainRate(0.0)
    for step in range(1, int(seconds / every) + 1):
        rate.note(step * every)
    return rate


def test_a_steady_rate_says_how_long_a_backlog_takes() -> None:
    rate = steady(every=0.5, seconds=100.0)
    assert rate.per_second(100.0) == pytest.approx(2.0, rel=0.05)
    assert rate.retry_after(20, 100.0) == 10


def test_a_long_backlog_is_not_waited_for_beyond_the_bound() -> None:
    assert steady(every=20.0, seconds=100.0).retry_after(1000, 100.0) == LONGEST_S


def test_after_an_idle_time_the_last_event_tells_nothing() -> None:
    rate = steady(every=1.0, seconds=60.0)
    assert rate.retry_after(1, 60.0 + SILENT_S) > UNKNOWN_S
    assert rate.retry_after(1, 60.1 + SILENT_S) == UNKNOWN_S
    assert (rate.per_second(60.1 + SILENT_S), rate.seconds_for(1, 60.1 + SILENT_S)) == (0.0, inf)


def test_nothing_ever_left() -> None:
    assert DrainRate(5.0).retry_after(3, 5.0) == UNKNOWN_S
    assert DrainRate(5.0).retry_after(3, 50.0) == UNKNOWN_S
