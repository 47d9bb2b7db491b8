"""The decision as the request life sees it."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Rows
from endpoint_picker.decision import Decision, Refusal, Router
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter, Follower, NoParams, Plugin, Pool
from inference_api.offered import OfferedText, Uses, text_mark

SHEDDABLE = json.dumps({"objectives": {"batch": {"priority": -1}, "chat": {"priority": 10}}})


RECORD = Record(0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def router_of(count: int, *, config: str = "", seed: int = 1) -> PoolRouter:
    router = build_router(
        config_text=config, priorities_text=SHEDDABLE, clock=Clock(), rng=np.random.default_rng(seed)
    )
    router.replace_endpoints(endpoints(count))
    return router


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(count)]


def scraped(router: PoolRouter, waiting: float = 0, usage: float = 0.1) -> None:
    rows = router.table.ready_rows
    router.table.waiting[rows] = router.table.running[rows] = waiting
    router.table.kv_usage[rows] = usage
    router.table.scraped_at[rows] = 1000.0


def unwanted(answer: object) -> None:
    raise AssertionError(answer)


def decided(router: PoolRouter, asked: InferenceRequest, subset: list[str] | None) -> object:
    return router.decide(asked, subset, unwanted)


def request(prompt: bytes = b"", objective: str = "") -> InferenceRequest:
    return InferenceRequest(request_id="r", model="m", prompt=prompt, objective=objective)


def routed(
    router: PoolRouter, asked: InferenceRequest | None = None, subset: list[str] | None = None
) -> Decision:
    pick = decided(router, asked or request(), subset)
    assert isinstance(pick, Decision)
    return pick


def refused(
    router: PoolRouter, asked: InferenceRequest | None = None, subset: list[str] | None = None
) -> Outcome:
    refusal = decided(router, asked or request(), subset)
    assert isinstance(refusal, Refusal)
    assert refusal.message
    return refusal.outcome


def test_it_is_a_router() -> None:
    router: Router = router_of(1)
    assert isinstance(router.decide(request(), None, unwanted), Decision)


def test_a_pick_names_its_primary_and_two_fallbacks() -> None:
    pick = routed(router_of(5))
    named = pick.destination.split(",")
    assert named[0] == pick.endpoint
    assert len(named) == len(set(named)) == 3
    assert routed(router_of(1)).destination == "10.0.0.0:8000"


def test_a_burst_between_two_scrapes_spreads() -> None:
    router = router_of(4)
    scraped(router)
    picks = [routed(router) for _ in range(40)]
    assert Counter(pick.endpoint for pick in picks) == {f"10.0.0.{n}:8000": 10 for n in range(4)}


def test_a_burst_spreads_when_no_endpoint_has_metrics() -> None:
    router = router_of(4)
    assert set(Counter(routed(router).endpoint for _ in range(40)).values()) == {10}


def test_an_endpoint_whose_metrics_stopped_is_left_alone_while_others_are_fresh() -> None:
    router = router_of(3)
    scraped(router, waiting=3)
    router.table.scraped_at[0] = 990.0
    router.table.expire(1000.0)
    assert all(routed(router).reservations[0].row != 0 for _ in range(20))


def test_a_prompt_returns_to_where_its_prefix_is() -> None:
    router = router_of(6)
    scraped(router)
    prompt = b"the same system prompt " * 100
    first = routed(router, request(prompt))
    router.ended(first, RECORD)
    assert first.prefix_hit == 0
    again = routed(router, request(prompt + b"and a question"))
    assert again.endpoint == first.endpoint
    assert again.prefix_hit == 8 / 9
    assert again.reservations[0].tokens == (2300 + 14) // 4 - 8 * 64
    assert router.scheduler.matched_blocks > 0


@pytest.mark.parametrize(
    ("subset", "allowed"),
    [
        pytest.param(None, {0, 1, 2}, id="absent: all"),
        pytest.param(["10.0.0.1"], {1}, id="address"),
        pytest.param(["10.0.0.1:8000", "10.0.0.2:8000"], {1, 2}, id="addresses with ports"),
        pytest.param(["10.0.0.2:8001", "10.0.0.0"], {0}, id="one of them unknown"),
    ],
)
def test_only_the_subset_is_picked_from(subset: list[str] | None, allowed: set[int]) -> None:
    router = router_of(3)
    named: set[str] = set()
    for _ in range(30):
        named.update(routed(router, subset=subset).destination.split(","))
    assert named == {f"10.0.0.{n}:8000" for n in allowed}


@pytest.mark.parametrize("subset", [[], ["10.9.9.9"], ["10.0.0.1:1"]])
def test_a_subset_that_leaves_nothing_is_no_endpoint(subset: list[str]) -> None:
    router = router_of(3)
    assert refused(router, subset=subset) is Outcome.NO_ENDPOINTS
    assert router.scheduler.refused_no_endpoints == 1


def test_no_ready_endpoint() -> None:
    router = router_of(0)
    assert refused(router) is Outcome.NO_ENDPOINTS
    router.replace_endpoints([Endpoint("p", "default", "10.0.0.1", 8000, ready=False)])
    assert refused(router) is Outcome.NO_ENDPOINTS


def test_filters_that_leave_nothing_are_no_endpoint() -> None:
    config = "plugins: [{type: label-selector-filter, parameters: {matchLabels: {tier: none}}}]"
    assert refused(router_of(3, config=config)) is Outcome.NO_ENDPOINTS


@pytest.mark.parametrize(
    ("objective", "waiting", "shed"),
    [
        pytest.param("batch", 5, True, id="negative and saturated"),
        pytest.param("batch", 1, False, id="negative with room"),
        pytest.param("chat", 50, False, id="positive is never shed"),
        pytest.param("", 50, False, id="no objective is priority 0"),
        pytest.param("unknown", 50, False, id="unknown objective is priority 0"),
    ],
)
def test_only_negative_priority_is_shed_and_only_under_saturation(
    objective: str, waiting: int, shed: bool
) -> None:
    router = router_of(2)
    scraped(router, waiting=waiting)
    answer = decided(router, request(objective=objective), None)
    assert isinstance(answer, Refusal) == shed
    if isinstance(answer, Refusal):
        assert answer.outcome is Outcome.SATURATED
        assert router.scheduler.refused_saturated == 1


def test_priorities_are_swapped_while_running() -> None:
    router = router_of(1)
    scraped(router, waiting=50)
    assert refused(router, request(objective="batch")) is Outcome.SATURATED
    assert router.apply_priorities("{}")
    assert routed(router, request(objective="batch")).endpoint == "10.0.0.0:8000"


@pytest.mark.parametrize(
    "text", ["not json", '{"objectives": {"batch": {"priority": "high"}}}', '{"version": 99}']
)
def test_a_faulty_priority_table_keeps_the_last_good_one(text: str) -> None:
    router = router_of(1)
    scraped(router, waiting=50)
    assert not router.apply_priorities(text)
    assert router.priorities_error
    assert router.offered.priorities.mark == text_mark(text)
    assert refused(router, request(objective="batch")) is Outcome.SATURATED
    assert router.apply_priorities(SHEDDABLE)
    assert router.priorities_error == ""


def test_a_faulty_configuration_keeps_the_last_good_one() -> None:
    router = router_of(3, config="plugins: [{type: random-picker, parameters: {maxNumOfEndpoints: 2}}]")
    assert len(routed(router).destination.split(",")) == 2
    assert not router.apply_config("plugins: [{type: nothing-like-it}]")
    assert "plugins[0].type" in router.config_error
    assert router.offered.config.uses is Uses.LAST_GOOD
    assert len(routed(router).destination.split(",")) == 2
    assert router.apply_config("")
    assert router.offered.config == OfferedText(mark=text_mark(""))
    assert len(routed(router).destination.split(",")) == 3


def test_a_picker_starts_with_the_default_when_its_configuration_is_faulty() -> None:
    router = router_of(2, config="plugins: 3")
    assert "plugins" in router.config_error
    assert router.offered.config.uses is Uses.DEFAULT
    assert not router.apply_config("plugins: 4")
    assert router.offered.config.uses is Uses.DEFAULT
    assert router.offered.config.mark == text_mark("plugins: 4")
    assert routed(router).endpoint
    assert "queue-scorer" in router.state()["profile"]["scorers"]


def test_in_flight_tokens_end_with_the_first_token_and_requests_with_the_release() -> None:
    router = router_of(1)
    pick = routed(router, request(b"x" * 4000))
    assert router.state()["endpoints"][0]["inFlightTokens"] == 1000
    router.first_byte(pick, RECORD)
    router.first_byte(pick, RECORD)
    assert router.state()["endpoints"][0]["inFlightTokens"] == 0
    assert router.state()["inFlight"] == 1
    router.ended(pick, RECORD)
    router.ended(pick, RECORD)
    assert router.state()["inFlight"] == 0
    assert router.state()["endpoints"][0]["inFlightRequests"] == 0


def test_listeners_hear_of_changes_only() -> None:
    router = router_of(1)
    heard: list[tuple[str, ...]] = []
    router.subscribe(lambda: heard.append(router.ready_addresses()))
    assert router.replace_endpoints(endpoints(2))
    assert not router.replace_endpoints(endpoints(2))
    router.replace_endpoints([])
    assert heard == [("10.0.0.0:8000", "10.0.0.1:8000"), ()]


class TakesTurns(Filter):
    """Keeps one candidate, another one with every call."""

    __slots__ = ("_calls",)
    type_name = "takes-turns"

    def __init__(self, params: NoParams) -> None:
        self._calls = 0

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        self._calls += 1
        rows = candidates.rows
        at = self._calls % rows.size
        return rows[at : at + 1]


def with_plugin(config: str, kind: type[Plugin]) -> PoolRouter:
    installed = Registry.installed()
    loaders: dict[str, Callable[[], object]] = {
        name: partial(installed.find, name, "") for name in installed.types
    }
    registry = Registry({**loaders, kind.type_name: lambda: kind})
    router = build_router(config_text=config, clock=Clock(), registry=registry, rng=np.random.default_rng(1))
    assert not router.config_error
    return router


def test_recording_runs_no_plugin_a_second_time() -> None:
    router = with_plugin("plugins: [{type: takes-turns}, {type: queue-scorer}]", TakesTurns)
    router.replace_endpoints(endpoints(3))
    picked = [routed(router).endpoint for _ in range(6)]
    assert picked[:3] == picked[3:]
    assert len(set(picked)) == 3
    assert [kept.destination for kept in router.decisions.newest()] == picked[::-1]


class BrokenDecisions(Decisions):
    """Fails to keep a decision."""

    @override
    def picked(self, *_given: object) -> None:
        raise ZeroDivisionError


class BrokenFollower(Follower):
    """Fails on everything that it follows."""

    __slots__ = ()
    type_name = "broken-follower"

    @override
    def decided(self, *_given: object) -> None:
        raise ZeroDivisionError


def test_a_fault_within_the_decision_leaves_no_reservation() -> None:
    router = router_of(3)
    router.scheduler.recorder = BrokenDecisions(router.table, lambda: 0.0)
    with pytest.raises(ZeroDivisionError):
        decided(router, request(b"x" * 1000), None)
    assert router.ledger.held == 0
    assert not router.table.inflight_requests.any()
    assert not router.table.inflight_tokens.any()


def test_a_follower_that_fails_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    router = with_plugin("plugins: [{type: broken-follower}, {type: prefix-cache-scorer}]", BrokenFollower)
    router.replace_endpoints(endpoints(3))
    pick = routed(router, request(b"x" * 1000))
    assert "a plugin failed" in caplog.text
    assert router.index.entries == 3  # the producer has noted the prompt
    router.ended(pick, RECORD)
    assert router.ledger.held == 0
    assert not router.table.inflight_requests.any()


class Unusable(Filter):
    """Can be made and cannot be used."""

    __slots__ = ()
    type_name = "unusable"

    @override
    def attach(self, pool: Pool) -> None:
        raise ZeroDivisionError("no such device")

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        raise AssertionError("is in use")


def test_a_plugin_that_cannot_be_taken_into_use_leaves_the_last_good_configuration() -> None:
    sized = "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: %d}}%s]"
    router = with_plugin(sized % (128, ""), Unusable)
    router.replace_endpoints(endpoints(3))
    assert not router.apply_config(sized % (512, ", {type: unusable}"))
    assert "no such device" in router.config_error
    assert router.offered.config.uses is Uses.LAST_GOOD
    assert router.state()["prefixIndex"]["blockTokens"] == 128
    assert isinstance(decided(router, request(), None), Decision)


def test_the_text_in_use_is_not_loaded_again() -> None:
    router = router_of(1)
    assert router.state()["config"]["loads"] == 1
    assert router.apply_config("")
    assert router.state()["config"]["loads"] == 1
    assert router.apply_config("plugins: []")
    assert router.state()["config"]["loads"] == 2


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.lists(st.integers(0, 8), max_size=3), st.text("ab", max_size=4)),
        max_size=30,
    )
)
def test_picks_are_always_ready_allowed_and_given_back(history: list[tuple[int, list[int], str]]) -> None:
    router = router_of(0)
    held: list[Decision] = []
    for count, subset, letters in history:
        router.replace_endpoints(endpoints(count))
        hint = [f"10.0.0.{n}" for n in subset] if subset else None
        answer = decided(router, request(b"".join(letter.encode() * 256 for letter in letters)), hint)
        allowed = {f"10.0.0.{n}:8000" for n in range(count) if not subset or n in subset}
        if isinstance(answer, Decision):
            assert set(answer.destination.split(",")) <= allowed
            held.append(answer)
        else:
            assert not allowed
    assert router.ledger.held == len(held)
    for pick in held:
        router.ended(pick, RECORD)
    assert router.ledger.held == 0
    assert not router.table.inflight_requests.any()
    assert not router.table.inflight_tokens.any()
    assert not router.table.unseen.any()
