"""Retry-After of requests that are shed without flow control."""

import numpy as np
import pytest

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter

FULL_AT_TEN = """
plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 10}}, {type: active-request-scorer}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"""


@pytest.mark.parametrize(
    ("running", "ended", "seconds"),
    [
        (10, 0, 10),  # nothing has ended: not known
        (10, 4, 1),  # one has to end, and one a second does: four in four seconds
        (20, 4, 10),  # ten have to end
        (90, 1, 60),  # eighty have to end, one in four seconds: the longest
    ],
)
def test_it_says_when_enough_requests_have_ended(running: int, ended: int, seconds: int) -> None:
    now = [100.0]
    router = PoolRouter(Registry.installed(), clock=lambda: now[0], rng=np.random.default_rng(1))
    assert router.apply_config(FULL_AT_TEN)
    assert router.apply_priorities('{"objectives": {"batch": {"priority": -1}}}')
    router.replace_endpoints([Endpoint("p", "d", "10.0.0.1", 8000)])

    def ask(objective: str = "") -> Decision | Refusal:
        request = InferenceRequest(request_id="r", objective=objective)
        answer = router.decide(request, None, lambda _answer: None)
        assert isinstance(answer, Decision | Refusal)
        return answer

    def start() -> Decision:
        answer = ask()
        assert isinstance(answer, Decision)
        return answer

    for _ in range(ended):
        router.ended(start(), Record(now[0]))
    for _ in range(running):
        start()
    now[0] = 104.0
    shed = ask("batch")
    assert isinstance(shed, Refusal)
    assert shed.retry_after == seconds
