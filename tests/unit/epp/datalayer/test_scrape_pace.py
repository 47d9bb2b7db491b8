"""When a server is asked again, on a clock that the test sets."""

import pytest

from endpoint_picker.datalayer.scrape_pace import (
    FIRST_PAUSE_S,
    IDLE_INTERVALS,
    LONGEST_IDLE_S,
    LONGEST_PAUSE_S,
    MAX_BYTES_PER_SECOND,
    Pace,
)


class Middle:
    """Chance without jitter."""

    def random(self) -> float:
        return 0.5


class Fixed:
    """Chance that always falls the same way."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


def scraped(pace: Pace, now: float, *, busy: bool, size: int = 0) -> None:
    pace.asked(now)
    pace.read(now, busy=busy, size=size)


def test_a_busy_server_is_asked_each_interval_however_late_one_scrape_was() -> None:
    pace = Pace(0.05, Middle())
    scraped(pace, 10.0, busy=True)
    first = pace.due
    scraped(pace, first + 0.02, busy=True)
    assert pace.due == pytest.approx(first + 0.05)
    scraped(pace, first + 5.0, busy=True)
    assert pace.due == pytest.approx(first + 5.025)


def test_servers_that_appear_together_are_asked_apart() -> None:
    early, late = Pace(0.05, Fixed(0.0)), Pace(0.05, Fixed(0.99))
    for pace in (early, late):
        scraped(pace, 10.0, busy=True)
    assert late.due - early.due > 0.02


def test_an_idle_server_is_asked_less_often_until_it_is_chosen() -> None:
    pace = Pace(0.05, Middle())
    scraped(pace, 10.0, busy=False)
    assert pace.due == pytest.approx(10.0 + 0.05 * IDLE_INTERVALS)
    pace.hurry(10.01)
    assert pace.due == 10.01
    scraped(pace, 10.01, busy=True)
    assert pace.due <= 10.01 + 0.05


def test_metrics_of_an_idle_server_stay_fresh_for_the_detector() -> None:
    for value in (0.0, 0.999):
        pace = Pace(0.05, Fixed(value))
        scraped(pace, 10.0, busy=False)
        assert 0.05 < pace.due - 10.0 < 0.15


@pytest.mark.parametrize(("interval", "expected"), [(0.8, LONGEST_IDLE_S), (5.0, 5.0)])
def test_a_long_interval_bounds_the_idle_one(interval: float, expected: float) -> None:
    pace = Pace(interval, Middle())
    scraped(pace, 10.0, busy=False)
    assert pace.due == pytest.approx(10.0 + expected)


def test_failures_in_a_row_are_paused_ever_longer_and_a_page_ends_that() -> None:
    pace = Pace(0.05, Middle())
    pauses = []
    for _ in range(8):
        pace.failed(10.0)
        pauses.append(pace.due - 10.0)
    assert pauses[:3] == pytest.approx([FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)
    scraped(pace, 20.0, busy=True)
    assert pace.due <= 20.05
    pace.failed(30.0)
    assert pace.due == pytest.approx(30.0 + FIRST_PAUSE_S)


def test_being_chosen_does_not_end_the_pause_of_a_server_that_failed() -> None:
    pace = Pace(0.05, Middle())
    pace.failed(10.0)
    due = pace.due
    pace.hurry(10.01)
    assert pace.due == due


def test_pauses_differ_so_that_servers_are_not_asked_in_step() -> None:
    short, long = Pace(0.05, Fixed(0.0)), Pace(0.05, Fixed(0.999))
    for pace in (short, long):
        pace.failed(10.0)
    assert short.due < long.due


@pytest.mark.parametrize("busy", [True, False])
def test_a_very_long_page_is_asked_for_less_often_even_when_chosen(busy: bool) -> None:
    pace = Pace(0.05, Middle())
    scraped(pace, 10.0, busy=busy, size=MAX_BYTES_PER_SECOND)
    assert pace.due == pytest.approx(11.0)
    pace.hurry(10.1)
    assert pace.due == pytest.approx(11.0)
