"""A request that goes on with a response or a conversation goes to the endpoint that has its state."""

import json

import numpy as np
import pytest

from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.routing import PoolRouter, build_router
from envoy_messages import request_body, request_headers, response_body, response_headers
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.turns import Turns

CONFIG = """
plugins:
- type: response-state-producer
- type: session-affinity-filter
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{attribute: ResponseState}]}
- type: random-picker
schedulingProfiles:
- name: default
  plugins: [{pluginRef: session-affinity-filter}, {pluginRef: random-picker}]
"""


def router(seed: int) -> PoolRouter:
    made = build_router(config_text=CONFIG, clock=lambda: 100.0, rng=np.random.default_rng(seed))
    assert not made.config_error, made.config_error
    made.replace_endpoints(Endpoint(f"p{at}", "d", f"10.0.0.{at}", 8000) for at in range(20))
    return made


def call(
    made: PoolRouter, answer: dict[str, object], method: str = "POST", path: str = "", **body: object
) -> str:
    """Make one call; return the endpoint that got it."""
    picking = Picking(made, PickerMetrics(), 100.0, lambda: 100.0, Turns(None, 1 << 20))
    exchange = Exchange(picking, BodyBudget())
    exchange.received(request_headers(method=method, path=path or "/v1/responses", end=not body), 100.0)
    if body:
        exchange.received(
            request_body(json.dumps({"model": "m", "input": "x", **body}).encode(), end=True), 100.0
        )
    exchange.received(response_headers(), 100.0)
    exchange.received(response_body(json.dumps(answer).encode(), end=True), 100.0)
    return picking.record.endpoint


@pytest.mark.parametrize("seed", range(5))
def test_a_follow_up_goes_where_the_response_came_from(seed: int) -> None:
    made = router(seed)
    first = call(made, {"id": "resp_1", "object": "response"}, store=True)
    for _ in range(5):
        call(made, {"id": "resp_x", "object": "response"}, store=True)
    assert call(made, {"id": "resp_2", "object": "response"}, previous_response_id="resp_1") == first
    assert call(made, {"id": "resp_3", "object": "response"}, previous_response_id="resp_2") == first
    assert call(made, {}, "GET", "/v1/responses/resp_2") == first
    assert call(made, {}, "DELETE", "/v1/responses/resp_3") == first


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_stays_where_it_began(conversation: object) -> None:
    made = router(1)
    picked = {call(made, {}, conversation=conversation) for _ in range(6)}
    assert len(picked) == 1
    assert len({call(made, {}, store=True) for _ in range(10)}) > 1
