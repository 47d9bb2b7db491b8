"""Injected faults: what a request may set, and what follows."""

import itertools
import json

import pytest

from model_server_sim.faults import Faults
from model_server_sim.protocol import ApiError


def test_a_change_keeps_the_other_fields() -> None:
    first = Faults().changed(b'{"slow": 2, "metrics": "stale"}')
    second = first.changed(b'{"slow": 3.5}')
    assert (second.slow, second.metrics, second.hang) == (3.5, "stale", "no")
    assert json.loads(second.json())["slow"] == 3.5


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"speed": 1}', "unknown speed; the fields are slow, hang"),
        (b'{"slow": 0}', "slow must be between 0.01 and 1000"),
        (b'{"slow": "much"}', "slow must be a number"),
        (b'{"error_rate": true}', "error_rate must be a number"),
        (b'{"error_rate": NaN}', "error_rate must be between 0 and 1"),
        (b'{"error_status": 200}', "error_status must be between 400 and 599"),
        (b'{"reset_after_tokens": 1.5}', "reset_after_tokens must be a number"),
        (b'{"metrics": "gone"}', "metrics must be one of live, stale, absent"),
        (b'{"hang": 1}', "hang must be a string"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        Faults().changed(body)
    assert refused.value.status == 400


def test_the_rates_are_shares_of_the_requests() -> None:
    faults = Faults(error_rate=0.25, error_status=429, reset_rate=0.5, reset_after_tokens=7)
    numbers = itertools.cycle([0.1, 0.3, 0.6, 0.9])
    refusals = [faults.refusal(lambda: next(numbers)) for _ in range(8)]
    assert [bool(refusal) for refusal in refusals] == [True, False, False, False] * 2
    assert refusals[0] is not None
    assert refusals[0].status == 429
    assert [faults.reset_after(lambda: next(numbers)) for _ in range(4)] == [7, 7, None, None]
    assert Faults().refusal(lambda: 0.0) is None
    assert Faults().reset_after(lambda: 0.0) is None
