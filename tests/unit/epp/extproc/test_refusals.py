"""What a client gets in place of an answer, in the dialect that it speaks."""

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as _untyped_pb

import envoy_messages
from endpoint_picker.extproc.headers import NAMES, RequestHeaders
from endpoint_picker.extproc.refusals import MAX_MESSAGE, refusal_reply
from endpoint_picker.outcomes import Outcome
from ext_proc import wire
from lean_grpc import StatusCode

pb = cast("Any", _untyped_pb)


def headers(path: str = "/v1/chat/completions", **more: str) -> RequestHeaders:
    named = {name.replace("_", "-"): value for name, value in more.items()}
    _, head = wire.decode(envoy_messages.request_headers(named, path=path), NAMES)
    return RequestHeaders(head)


def reply(given: RequestHeaders | None, outcome: Outcome, retry_after: int | None = None) -> Any:
    payload = refusal_reply(given, outcome, "because", retry_after, None)
    return pb.ProcessingResponse.FromString(payload).immediate_response


def added(answer: Any) -> dict[str, str]:
    return {each.header.key: each.header.raw_value.decode() for each in answer.headers.set_headers}


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.BAD_REQUEST, "invalid_request_error"),
        (Outcome.TOO_LARGE, "request_too_large"),
        (Outcome.SATURATED, "rate_limit_error"),
        (Outcome.NO_ENDPOINTS, "overloaded_error"),
    ],
)
@pytest.mark.parametrize(
    "given",
    [
        headers("/v1/messages"),
        headers("/proxy/v1/messages/count_tokens?beta=true"),
        headers("/v1/other", anthropic_version="2023-06-01"),
    ],
    ids=["messages", "count_tokens", "by header"],
)
def test_anthropics_clients_get_their_own_error(given: RequestHeaders, outcome: Outcome, kind: str) -> None:
    answer = reply(given, outcome)
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": kind, "message": "because"},
        "request_id": "r-1",
    }
    assert added(answer)["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.BAD_REQUEST, "invalid_request_error"),
        (Outcome.TOO_LARGE, "invalid_request_error"),
        (Outcome.SATURATED, "rate_limit_error"),
        (Outcome.OVERLOADED, "server_error"),
    ],
)
@pytest.mark.parametrize("given", [headers(), headers("/rerank"), None], ids=["chat", "other", "no headers"])
def test_all_others_get_openais_error(given: RequestHeaders | None, outcome: Outcome, kind: str) -> None:
    assert json.loads(reply(given, outcome).body) == {
        "error": {"message": "because", "type": kind, "param": None, "code": outcome.value}
    }


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.BAD_REQUEST, StatusCode.INVALID_ARGUMENT),
        (Outcome.SATURATED, StatusCode.RESOURCE_EXHAUSTED),
        (Outcome.NO_ENDPOINTS, StatusCode.UNAVAILABLE),
    ],
)
def test_a_grpc_call_gets_a_grpc_status(outcome: Outcome, code: StatusCode) -> None:
    answer = reply(headers("/vllm.Engine/Generate", content_type="application/grpc+proto"), outcome)
    assert (answer.grpc_status.status, answer.body) == (code, b"because")
    assert "content-type" not in added(answer)


@pytest.mark.parametrize(
    ("outcome", "given", "sent"),
    [
        (Outcome.SATURATED, None, "1"),
        (Outcome.SATURATED, 17, "17"),
        (Outcome.SATURATED, 0, None),
        (Outcome.BAD_REQUEST, None, None),
        (Outcome.TOO_LARGE, None, None),
        (Outcome.TOO_LARGE, 3, "3"),
    ],
)
def test_retry_after_stands_where_a_retry_makes_sense(
    outcome: Outcome, given: int | None, sent: str | None
) -> None:
    assert added(reply(headers(), outcome, given)).get("retry-after") == sent


def test_a_long_sentence_is_cut_and_a_field_is_named() -> None:
    payload = refusal_reply(headers(), Outcome.BAD_REQUEST, 'ü"' * 5000, None, "model")
    error = json.loads(pb.ProcessingResponse.FromString(payload).immediate_response.body)["error"]
    assert error["message"] == ('ü"' * 5000)[:MAX_MESSAGE]
    assert error["param"] == "model"


def test_every_outcome_has_a_status_a_type_and_a_metric_code() -> None:
    for outcome in Outcome:
        if outcome is not Outcome.PICKED:
            answer = reply(headers(), outcome)
            assert answer.status.code == outcome.http_status >= 400
            assert outcome.code


def test_the_page_in_docs_lists_every_answer_with_its_status() -> None:
    page = (Path(__file__).parents[4] / "docs" / "errors.md").read_text()
    rows = {cells[2].strip(" `"): cells for line in page.splitlines() if len(cells := line.split("|")) == 7}
    for outcome in Outcome:
        if outcome is not Outcome.PICKED:
            assert rows[outcome.value][1].strip() == str(outcome.http_status), outcome


def test_the_proxy_can_tell_every_answer_from_its_own() -> None:
    for outcome in Outcome:
        answer = pb.ProcessingResponse.FromString(refusal_reply(None, outcome, "no", None, None))
        assert (
            re.fullmatch("[a-z]+(-[a-z]+)+", answer.immediate_response.details) or outcome is Outcome.PICKED
        )
