"""Which objective and priority a request has: by header, by model, by default; unknown ones are counted."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.observability.explain import explain_page
from endpoint_picker.request import ASKED_MODEL, InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.objectives import Source
from flow_pool import FlowPool

OBJECTIVES = {"chat": {"priority": 10}, "batch": {"priority": -10}, "tuned": {"priority": 5}}


def table(default: str = "", models: Mapping[str, str] | None = None) -> str:
    return json.dumps(
        {
            "objectives": OBJECTIVES,
            "default_objective": default,
            "model_objectives": dict(models or {}),
        }
    )


def router_with(text: str) -> PoolRouter:
    router = build_router(priorities_text=text, clock=lambda: 100.0)
    assert not router.priorities_error
    router.replace_endpoints([Endpoint("p", "default", "10.0.0.1", 8000)])
    return router


def decided(router: PoolRouter, **more: Any) -> InferenceRequest:
    request = InferenceRequest(request_id="r", **more)
    router.decide(request, None, lambda _answer: None)
    return request


FULL = table("batch", {"lora-a": "tuned", "lora-b": "gone"})


@pytest.mark.parametrize(
    ("text", "objective", "model", "named", "priority", "counted"),
    [
        pytest.param(table(), "", "m", "", 0, None, id="none, and no mapping"),
        pytest.param(table(), "chat", "m", "chat", 10, None, id="the header's"),
        pytest.param(table(), "gone", "m", "gone", 0, Source.HEADER, id="an unknown one in the header"),
        pytest.param(FULL, "", "lora-a", "tuned", 5, None, id="the model's"),
        pytest.param(FULL, "", "m", "batch", -10, None, id="the default one"),
        pytest.param(FULL, "chat", "lora-a", "chat", 10, None, id="the header wins over the model"),
        pytest.param(FULL, "gone", "lora-a", "gone", 0, Source.HEADER, id="an unknown header wins, too"),
        pytest.param(FULL, "", "lora-b", "gone", 0, Source.MODEL, id="the model's is unknown"),
        pytest.param(table("gone"), "", "m", "gone", 0, Source.DEFAULT, id="the default one is unknown"),
        pytest.param(table("", {"x": "chat"}), "", "m", "", 0, None, id="a model without one, no default"),
    ],
)
def test_the_priority_of_a_request(
    text: str, objective: str, model: str, named: str, priority: int, counted: Source | None
) -> None:
    router = router_with(text)
    request = decided(router, objective=objective, model=model)
    assert (request.objective, request.priority) == (named, priority)
    counts = {source: count for source, count in router.scheduler.unknown_objectives.items() if count}
    assert counts == ({} if counted is None else {counted: 1})
    (shown,) = explain_page(router.decisions, {}, 0.0)["decisions"]
    assert (shown["objective"], shown["priority"]) == (named, priority)


def test_a_rewritten_request_has_the_objective_of_the_model_that_was_asked_for() -> None:
    router = router_with(table("", {"asked": "chat", "served": "batch"}))
    request = InferenceRequest(request_id="r", model="served")
    request.attributes[ASKED_MODEL] = "asked"
    router.decide(request, None, lambda _answer: None)
    assert request.priority == 10


def test_another_table_holds_for_the_next_request_and_a_faulty_one_changes_nothing() -> None:
    router = router_with(table("batch"))
    assert decided(router, model="m").priority == -10
    assert router.apply_priorities(table("chat"))
    assert decided(router, model="m").priority == 10
    assert not router.apply_priorities("not json")
    assert decided(router, model="m").priority == 10
    assert router.state()["priorities"]["defaultObjective"] == "chat"


def test_another_mapping_moves_the_requests_that_wait_and_counts_none_twice() -> None:
    pool = FlowPool()
    assert pool.router.apply_priorities(table("batch", {"lora": "gone"}))
    running = [pool.ask(), pool.ask()]
    plain, tuned, named = pool.ask(), pool.ask(model="lora"), pool.ask("batch")
    assert [each.request.priority for each in (plain, tuned, named)] == [-10, 0, -10]
    assert pool.router.scheduler.unknown_objectives[Source.MODEL] == 1

    assert pool.router.apply_priorities(table("", {"lora": "chat"}))
    assert [each.request.priority for each in (plain, tuned, named)] == [0, 10, -10]
    assert (plain.request.objective, tuned.request.objective) == ("", "chat")
    pool.settle()
    running[0].end()
    pool.settle()
    assert (tuned.is_dispatched, plain.waits, named.waits) == (True, True, True)
    running[1].end()
    pool.settle()
    assert (plain.is_dispatched, named.waits) == (True, True)
    assert pool.router.scheduler.unknown_objectives[Source.MODEL] == 1
    (shown,) = explain_page(pool.router.decisions, {"request_id": tuned.request.request_id}, 0.0)["decisions"]
    assert (shown["objective"], shown["queue"]["position"]) == ("chat", 0)
