"""The other project's JSON: calls as its Go client makes them, answers with the fields that it reads."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from latency_bundle import bundle
from latency_predictor.serving.follower import Follower
from latency_predictor.serving.http_api import HttpApi
from latency_predictor.serving.model import serving_model
from latency_predictor.serving.service import PredictionService

#: As the reference's client sends it: `PredictBulkStrict`, one row a candidate.
ROW: dict[str, Any] = {
    "kv_cache_percentage": 0.35,
    "input_token_length": 1200,
    "num_request_waiting": 2,
    "num_request_running": 7,
    "num_tokens_generated": 1,
    "prefix_cache_score": 0.5,
    "encoder_input_size": 0,
    "encoder_matched_size": 0,
    "pod_type": "decode",
    "prefill_tokens_in_flight": 3000,
    "decode_tokens_in_flight": 0,
}
#: Fields of an answer that the client decodes.
ANSWER = {"ttft_ms", "tpot_ms", "predicted_at", "model_type", "objective_type", "quantile", "last_model_load"}


def call(method: str, path: str, body: Any = None, *, trained: bool = True) -> tuple[int, Any]:
    async def ask() -> tuple[int, Any]:
        service = PredictionService()
        if trained:
            service.use(serving_model(bundle(), None))
        api = HttpApi(service, Follower(Path("/nowhere"), service.use), 0.9)
        async with TestClient(TestServer(api.application())) as client:
            response = await client.request(method, path, json=body)
            return response.status, await response.json()

    return asyncio.run(ask())


def test_a_strict_bulk_call_is_answered_row_by_row() -> None:
    rows = [ROW, {**ROW, "num_request_waiting": 0, "pod_type": None}, {**ROW, "pod_type": "monolithic"}]
    status, page = call("POST", "/predict/bulk/strict", {"requests": rows})
    assert status == 200
    assert (page["total_requests"], page["successful_predictions"], page["failed_predictions"]) == (3, 3, 0)
    assert page["processing_time_ms"] >= 0
    for each in page["predictions"]:
        assert set(each) == ANSWER
        assert each["ttft_ms"] > 0
        assert each["tpot_ms"] > 0
        assert (each["model_type"], each["objective_type"], each["quantile"]) == ("xgboost", "quantile", 0.9)
    # More requests wait at the first row.
    assert page["predictions"][0]["ttft_ms"] > page["predictions"][1]["ttft_ms"]


def test_in_flight_fields_change_the_answer_of_every_call() -> None:
    more = {**ROW, "prefill_tokens_in_flight": 28_000}
    for path, wrap in (("/predict", False), ("/predict/bulk", True), ("/predict/bulk/strict", True)):
        answers = []
        for row in (ROW, more):
            _status, page = call("POST", path, {"requests": [row]} if wrap else row)
            answers.append((page["predictions"][0] if wrap else page)["ttft_ms"])
        assert answers[1] > answers[0], path


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kv_cache_percentage": 1.5}, "kv_cache_percentage"),
        ({"input_token_length": -1}, "input_token_length"),
        ({"prefix_cache_score": None}, "prefix_cache_score"),
        ({"pod_type": 7}, "pod_type"),
    ],
)
def test_a_bad_row_fails_a_strict_call_and_only_itself_in_the_other(
    change: dict[str, Any], field: str
) -> None:
    requests = {"requests": [ROW, {**ROW, **change}]}
    status, page = call("POST", "/predict/bulk/strict", requests)
    assert status == 422
    assert f"requests[1]: {field}" in page["detail"]
    status, page = call("POST", "/predict/bulk", requests)
    assert status == 200
    assert page["predictions"][1] is None
    assert page["failed_predictions"] == 1
    (error,) = page["errors"]
    assert error["index"] == 1


@pytest.mark.parametrize(
    "body", [None, [], {}, {"requests": []}, {"requests": "x"}, {"requests": [0] * 10_001}]
)
def test_a_body_without_rows_or_with_too_many_is_422(body: Any) -> None:
    assert call("POST", "/predict/bulk/strict", body)[0] == 422


def test_without_a_model_calls_are_503_and_the_status_says_so() -> None:
    assert call("POST", "/predict/bulk/strict", {"requests": [ROW]}, trained=False)[0] == 503
    status, page = call("GET", "/status", trained=False)
    assert (status, page["is_ready"], page["state"]) == (200, False, "warming")


def test_the_status_has_the_fields_of_the_reference() -> None:
    _status, page = call("GET", "/status")
    assert {
        "is_ready", "model_type", "objective_type", "quantile", "last_model_load", "training_server_url",
        "models_exist", "ensemble_active",
    } <= set(page)  # fmt: skip
    assert page["is_ready"] is True
    assert page["models_exist"] == {"ttft": True, "tpot": True, "e2e": True}
    assert call("GET", "/healthz") == (200, {"status": "ok"})
