"""A response from another endpoint than the one picked corrects the ledger and the prefix index."""

import pytest

from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router

PROMPT = b"0123456789abcdef" * 256


def router_of(*addresses: str) -> PoolRouter:
    router = build_router()
    router.replace_endpoints(Endpoint(f"p{each}", "default", each, 8000) for each in addresses)
    return router


def decided(router: PoolRouter, prompt: bytes = PROMPT) -> Decision:
    request = InferenceRequest(request_id="r", model="m", prompt=prompt)
    decision = router.decide(request, None, lambda _answer: None)
    assert isinstance(decision, Decision)
    return decision


def served(decision: Decision, by: str) -> Record:
    record = Record(0.0)
    record.served_by = by
    return record


def cached(router: PoolRouter, hostport: str, prompt: bytes = PROMPT) -> int:
    """Return how many blocks of the prompt the endpoint is believed to hold."""
    rows = router.table.rows_of([hostport])
    return int(router.index.match(router.index.hashes("m", prompt), rows)[0])


def in_flight(router: PoolRouter, hostport: str) -> int:
    return int(router.table.inflight_requests[router.table.row_of(hostport) or 0])


def test_the_one_that_answers_has_the_request_and_the_prompt() -> None:
    router = router_of("10.0.0.1", "10.0.0.2")
    decision = decided(router)
    other = next(each for each in router.ready_addresses() if each != decision.endpoint)
    blocks = cached(router, decision.endpoint)
    assert blocks > 0
    router.first_byte(decision, served(decision, other))
    assert (in_flight(router, decision.endpoint), in_flight(router, other)) == (0, 1)
    assert (cached(router, decision.endpoint), cached(router, other)) == (0, blocks)
    router.ended(decision, Record(1.0))
    assert in_flight(router, other) == router.ledger.held == 0


def test_the_primary_keeps_what_it_held_before_the_decision() -> None:
    router = router_of("10.0.0.1")
    first = decided(router)
    router.first_byte(first, served(first, first.endpoint))
    router.ended(first, Record(1.0))
    held = cached(router, first.endpoint)
    longer = PROMPT + bytes(4096)
    second = decided(router, longer)
    assert cached(router, first.endpoint, longer) > held
    router.replace_endpoints(Endpoint(f"p{each}", "default", each, 8000) for each in ("10.0.0.1", "10.0.0.2"))
    router.first_byte(second, served(second, "10.0.0.2:8000"))
    assert cached(router, first.endpoint, longer) == held
    assert cached(router, "10.0.0.2:8000", longer) > held


@pytest.mark.parametrize("by", ["10.9.9.9:8000", "nonsense"])
def test_an_answer_from_an_address_that_is_no_endpoint_gives_the_reservation_back(by: str) -> None:
    router = router_of("10.0.0.1", "10.0.0.2")
    decision = decided(router)
    router.first_byte(decision, served(decision, by))
    assert router.ledger.held == 0
    assert cached(router, decision.endpoint) == 0


@pytest.mark.parametrize("by", ["", "primary"])
def test_an_answer_from_the_primary_or_from_nobody_known_changes_neither(by: str) -> None:
    router = router_of("10.0.0.1", "10.0.0.2")
    decision = decided(router)
    router.first_byte(decision, served(decision, decision.endpoint if by else ""))
    assert in_flight(router, decision.endpoint) == 1
    assert cached(router, decision.endpoint) > 0
