"""The page /debug/explain: what it says of picks and refusals, and what the ring keeps."""

import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from endpoint_picker.config.registry import GROUP, Registry
from endpoint_picker.datalayer.metrics_page import Reading
from endpoint_picker.datalayer.scrape_columns import ScrapeColumns
from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Floats
from endpoint_picker.decision import Refusal
from endpoint_picker.observability import decisions
from endpoint_picker.observability.explain import BadQueryError, explain_page, explaining
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Scorer

CONFIG = """
plugins:
- {type: utilization-filter, parameters: {conditions: [{metric: waiting-queue, maxValue: 5}]}}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: utilization-filter}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""
PRIORITIES = json.dumps({"objectives": {"batch": {"priority": -1}}})
SECRET = b"the prompt of a client"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def router_of(*waiting: float, config: str = CONFIG, registry: Registry | None = None) -> PoolRouter:
    """Return a router over an endpoint for each queue; half of each KV cache is in use."""
    router = build_router(
        config_text=config,
        priorities_text=PRIORITIES,
        clock=Clock(),
        rng=np.random.default_rng(1),
        registry=registry,
    )
    assert not router.config_error
    router.replace_endpoints(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(len(waiting)))
    scrape(router, *waiting)
    return router


def scrape(router: PoolRouter, *waiting: float, at: float = 999.5) -> None:
    columns = ScrapeColumns(router.table, router.ledger)
    for row, queue in zip(router.table.ready_rows.tolist(), waiting, strict=True):
        columns.started(row)
        columns.write(row, Reading(queue, 1.0, 0.5, 16, 1000), at)


def ask(
    router: PoolRouter, request_id: str = "r", objective: str = "", subset: list[str] | None = None
) -> Any:
    request = InferenceRequest(request_id=request_id, model="m", prompt=SECRET * 100, objective=objective)
    return router.decide(request, subset, lambda _answer: None)


def explained(router: PoolRouter, **query: str) -> list[dict[str, Any]]:
    page = explain_page(router.decisions, query, 1_800_000_000.0)
    assert SECRET.decode() not in json.dumps(page, allow_nan=False)
    found: list[dict[str, Any]] = page["decisions"]
    return found


def test_a_pick_shows_its_candidates_cuts_and_scores() -> None:
    router = router_of(0, 4, 9)
    decision = ask(router)
    (found,) = explained(router, request_id="r")
    assert found["endpoint"] == decision.endpoint == "10.0.0.0:8000"
    assert found["fallbacks"] == ["10.0.0.1:8000"]
    assert (found["outcome"], found["status"], found["reason"]) == ("picked", None, "")
    assert found["at"] == "2027-01-15T08:00:00.000+00:00"
    assert [
        (each["endpoint"], each["waiting"], each["metricsAgeSeconds"]) for each in found["endpoints"]
    ] == [
        ("10.0.0.0:8000", 0.0, 0.5),
        ("10.0.0.1:8000", 4.0, 0.5),
        ("10.0.0.2:8000", 9.0, 0.5),
    ]
    (profile,) = found["profiles"]
    assert profile["filters"] == [{"name": "utilization-filter", "left": 2, "cut": ["10.0.0.2:8000"]}]
    assert profile["picker"] == "max-score-picker"
    assert profile["scored"] == [
        {
            "endpoint": "10.0.0.0:8000",
            "total": 3.5,
            "scores": {
                "queue-scorer": {"raw": 1.0, "weighted": 2.0},
                "kv-cache-utilization-scorer": {"raw": 0.5, "weighted": 1.5},
            },
        },
        {
            "endpoint": "10.0.0.1:8000",
            "total": 1.5,
            "scores": {
                "queue-scorer": {"raw": 0.0, "weighted": 0.0},
                "kv-cache-utilization-scorer": {"raw": 0.5, "weighted": 1.5},
            },
        },
    ]


def test_a_decision_is_explained_by_the_state_at_its_time() -> None:
    router = router_of(0, 4, 9)
    ask(router, "first")
    ask(router, "second")
    scrape(router, 7, 7, 7)
    ask(router, "third")
    router.replace_endpoints([])
    first, second, third = (explained(router, request_id=each)[0] for each in ("first", "second", "third"))
    assert [each["waiting"] for each in first["endpoints"]] == [0.0, 4.0, 9.0]
    assert [each["unseenRequests"] for each in first["endpoints"]] == [0, 0, 0]
    assert [each["unseenRequests"] for each in second["endpoints"]] == [1, 0, 0]
    assert [each["waiting"] for each in third["endpoints"]] == [7.0, 7.0, 7.0]


def test_the_proxys_scores_are_the_totals_of_the_explanation() -> None:
    router = router_of(0, 4, 9)
    assert ask(router, "without").scores == ()
    router.scheduler.emit_scores = True
    scores = dict(ask(router, "with").scores)
    (profile,) = explained(router, request_id="with")[0]["profiles"]
    assert scores == {each["endpoint"]: each["total"] for each in profile["scored"]}
    assert scores.keys() == {"10.0.0.0:8000", "10.0.0.1:8000"}


def test_refusals_say_why() -> None:
    router = router_of(9, 9)
    ask(router, "filtered")
    ask(router, "outside", subset=["10.9.9.9"])
    ask(router, "shed", objective="batch")
    router.unrouted(InferenceRequest(request_id="bad"), Refusal(Outcome.BAD_REQUEST, "no model"))
    (filtered,) = explained(router, request_id="filtered")
    assert (filtered["outcome"], filtered["status"]) == ("rejected-no-endpoints", 503)
    assert filtered["profiles"][0]["filters"] == [
        {"name": "utilization-filter", "left": 0, "cut": ["10.0.0.0:8000", "10.0.0.1:8000"]}
    ]
    assert filtered["profiles"][0]["scored"] == []
    (outside,) = explained(router, request_id="outside")
    assert (outside["candidates"], outside["profiles"]) == (0, [])
    (shed,) = explained(router, request_id="shed")
    assert (shed["outcome"], shed["priority"], shed["objective"]) == ("rejected-saturated", -1, "batch")
    (bad,) = explained(router, request_id="bad")
    assert (bad["status"], bad["reason"]) == (400, "no model")
    assert [each["requestId"] for each in explained(router, refused="true", limit="2")] == ["bad", "shed"]


def test_the_error_of_a_model_server_is_the_status_of_its_request() -> None:
    router = router_of(0, 4)
    asked = router.decisions.capacity + 5
    for number in range(asked):
        router.failed(f"r{number}", 404)
    ask(router, f"r{asked - 1}")
    ask(router, "fine")
    listed = {each["requestId"]: each["status"] for each in explained(router)}
    assert (listed["fine"], listed[f"r{asked - 1}"]) == (None, 404)
    kept = [router.decisions.failure_of(f"r{number}") for number in range(asked)]
    assert kept == [None] * 5 + [404] * (asked - 5)


def test_the_listing_is_filtered_and_limited() -> None:
    router = router_of(0, 0)
    for number in range(30):
        ask(router, f"r{number}", subset=[f"10.0.0.{number % 2}"])
        scrape(router, 0, 0)
    assert [each["requestId"] for each in explained(router, limit="2")] == ["r29", "r28"]
    assert len(explained(router)) == 20
    odd = explained(router, endpoint="10.0.0.1:8000", limit="3")
    assert [each["requestId"] for each in odd] == ["r29", "r27", "r25"]
    assert explained(router, refused="true") == []
    assert "endpoints" not in odd[0]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"limit": "0"}, "limit is a number from 1 to 500"),
        ({"limit": "9" * 5000}, "limit is a number from 1 to 500"),
        ({"limit": "000000500000"}, "limit is a number from 1 to 500"),
        ({"limit": "000000001" + "0" * 5000}, "limit is a number from 1 to 500"),
        ({"refused": "yes"}, "refused is true or false"),
        ({"id": "r"}, 'unknown parameter "id"; there are: endpoint, limit, refused, request_id'),
        ({"request_id": "r", "limit": "1"}, "request_id stands alone"),
    ],
)
def test_a_bad_query_is_answered_with_a_sentence(query: Mapping[str, str], sentence: str) -> None:
    with pytest.raises(BadQueryError, match=sentence):
        explain_page(router_of(0).decisions, query, 0.0)


def test_a_request_that_is_not_kept_is_answered_with_the_reason() -> None:
    page = explain_page(router_of(0).decisions, {"request_id": "r"}, 0.0)
    assert page["decisions"] == []
    assert page["note"].startswith(
        "no decision on request r is kept: the picker keeps its newest 64 decisions"
    )


def test_the_ring_is_bounded_and_deeper_while_it_is_read() -> None:
    router = router_of(0)
    for number in range(decisions.KEPT + 1):
        ask(router, f"{number}:" + "x" * 10_000)
        scrape(router, 0)
    kept = list(router.decisions.newest())
    assert len(kept) == decisions.KEPT
    assert {len(each.request_id) for each in kept} == {decisions.NAME_LIMIT}
    newest = f"{decisions.KEPT}:" + "x" * 10_000
    assert len(explained(router, request_id=newest)) == 1
    router.decisions.watch(True)
    for number in range(decisions.KEPT_WATCHED):
        ask(router, f"r{number}")
    assert len(router.decisions) == decisions.KEPT_WATCHED
    router.decisions.watch(False)
    assert len(router.decisions) == decisions.KEPT
    assert explained(router, limit="1")[0]["requestId"] == f"r{decisions.KEPT_WATCHED - 1}"


def test_a_large_pool_keeps_fewer_decisions() -> None:
    router = router_of(*([0.0] * 200))
    for _ in range(50):
        ask(router)
    assert len(router.decisions) == decisions.MAX_CANDIDATES // 200


class Strided(Scorer):
    """Answers with every second value of an array: memory that is not contiguous."""

    __slots__ = ()
    type_name = "strided"
    bounded = True

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        return np.linspace(0.0, 1.0, 2 * candidates.rows.size)[::2]


class Single(Strided):
    """Answers in single precision, against the contract."""

    type_name = "single"

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        wrong: Any = np.zeros(candidates.rows.size, dtype=np.float32)
        answer: Floats = wrong
        return answer


@pytest.mark.parametrize(("plugin", "scored"), [(Strided, 3), (Single, 0)])
def test_scores_in_unusual_memory_fail_no_decision(plugin: type[Scorer], scored: int) -> None:
    installed = {each.name: each.load for each in entry_points(group=GROUP)}
    registry = Registry({**installed, plugin.type_name: lambda: plugin})
    router = router_of(0, 0, 0, config=f"plugins: [{{type: {plugin.type_name}}}]", registry=registry)
    assert ask(router).endpoint
    (found,) = explained(router, request_id="r")
    assert len(found["profiles"][0]["scored"]) == scored


def test_equal_ids_are_all_explained_up_to_a_bound() -> None:
    router = router_of(0)
    for _ in range(20):
        ask(router)
    assert len(explained(router, request_id="r")) == 8


def test_a_page_of_many_endpoints_leaves_room_for_decisions_between() -> None:
    """Each step formats few endpoints, and what is decided meanwhile neither fails nor changes the page."""
    router = router_of(*[0] * 1_200)
    router.decisions.watch(True)
    for _ in range(3):
        ask(router)
    steps, pauses = explaining(router.decisions, {"request_id": "r"}, 0.0), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found = done.value["decisions"]
            break
        pauses += 1
        ask(router)
    assert pauses >= 2 * 1_200 / 64
    # A second decision's endpoints would exceed the bound of an answer.
    assert [len(each["endpoints"]) for each in found] == [1_200]
    for _ in range(128):
        ask(router)
    listing = explaining(router.decisions, {"endpoint": "10.9.9.9:1"}, 0.0)
    next(listing)
    ask(router)
    assert sum(1 for _ in listing) > 0
