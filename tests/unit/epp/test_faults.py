"""Faults that come back: the first is told with its stack, the next ones now and then."""

import logging

import pytest

from endpoint_picker.faults import INTERVAL_S, FaultLog


def test_the_first_is_told_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(logging.getLogger("here"), "it failed")
    for step in range(21):
        try:
            raise ZeroDivisionError(step)
        except ZeroDivisionError as fault:
            faults.note(fault, 7.0 + step * INTERVAL_S / 10, request_id=str(step))
    told = [vars(each) for each in caplog.records]
    assert [(each["request_id"], each["untold"]) for each in told] == [("0", 0), ("10", 9), ("20", 9)]
    assert "ZeroDivisionError: 10" in caplog.text
