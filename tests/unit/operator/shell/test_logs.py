import logging

import pytest

from inference_operator.shell.logs import BURST, REFILL_SECONDS, RepeatLimit


class Log:
    """A logger behind the limit, on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[logging.LogRecord] = []
        self._limit = RepeatLimit(lambda: self.now)

    def say(self, text: str, *values: object, level: int = logging.WARNING, logger: str = "operator") -> None:
        record = logging.LogRecord(logger, level, __file__, 1, text, values, None)
        if self._limit.filter(record):
            self.lines.append(record)


def test_a_complaint_of_a_thousand_pools_is_a_few_lines() -> None:
    log = Log()
    for number in range(1000):
        log.say("pass failed: %s", f"pool-{number}")
    assert len(log.lines) == BURST
    log.say("resync failed: %s", "another complaint")
    assert len(log.lines) == BURST + 1, "others are not held back with it"


def test_the_first_line_after_a_silence_says_how_many_were_held_back() -> None:
    log = Log()
    for _ in range(BURST + 7):
        log.say("pass failed: %s", "x")
    log.now += REFILL_SECONDS
    log.say("pass failed: %s", "x")
    log.say("pass failed: %s", "x")
    assert len(log.lines) == BURST + 1
    assert log.lines[-1].__dict__["held_back"] == 7


@pytest.mark.parametrize("minutes", [1, 60])
def test_an_hour_of_failures_is_bounded(minutes: int) -> None:
    log = Log()
    for _ in range(minutes * 60 * 10):
        log.now += 0.1
        log.say("pass failed: %s", "x")
    assert len(log.lines) <= BURST + minutes * 60 / REFILL_SECONDS + 1


def test_what_is_no_complaint_is_never_held_back() -> None:
    log = Log()
    for number in range(10 * BURST):
        log.say("made %s", number, level=logging.INFO)
    assert len(log.lines) == 10 * BURST


def test_the_memory_of_complaints_is_bounded() -> None:
    log = Log()
    for number in range(5000):
        log.say(f"text {number}")
    for _ in range(2 * BURST):
        log.say("text 4999")
    assert len(log.lines) == 5000 + BURST - 1
