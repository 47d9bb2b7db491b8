"""Lines of batch files: what is refused, and what an outcome looks like."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_contracts import make_job, make_result
from batch_subscriber.batches.lines import MAX_FAULTS, check_file, outcome_line, read_line
from batch_subscriber.batches.pending import Pending
from batch_subscriber.errors import JobError
from batch_subscriber.jobs import Cause

URL = "/v1/chat/completions"


def line(**changes: Any) -> bytes:
    values = {"custom_id": "a", "method": "POST", "url": URL, "body": {"model": "m", "n": 1}, **changes}
    return json.dumps({name: value for name, value in values.items() if value is not None}).encode()


def test_a_request_is_read() -> None:
    asked = read_line(line(custom_id="ä", body={"model": "m", "text": "ü"}))
    assert (asked.custom_id, asked.url, asked.body) == ("ä", URL, '{"model":"m","text":"ü"}'.encode())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "line: is no JSON"),
        (b"[" * 100_000, "line: is no JSON"),
        (b"[1]", "line: is no JSON object"),
        (line(custom_id=None), "custom_id: must be a string"),
        (line(custom_id=""), "custom_id: must be a string"),
        (line(custom_id="x" * 513), "custom_id: must be a string of 1 to 512"),
        (line(method="GET"), 'method: must be "POST"'),
        (line(url=1), "url: must be a string"),
        (line(body="text"), "body: must be a JSON object"),
        (line(body={"stream": True}), "body.stream: a batch has no streams"),
        (line(priority=1), "priority: is no field"),
        (b'{"custom_id":"a","method":"POST","url":"/v1/x","body":{"n":NaN}}', "body: has a number"),
        (
            b'{"custom_id":"a","method":"POST","url":"/v1/x","body":{"n":"\\ud800"}}',
            "body: has a number or text",
        ),
    ],
)
def test_a_bad_line_says_what_is_wrong(data: bytes, says: str) -> None:
    with pytest.raises(JobError) as refused:
        read_line(data)
    assert str(refused.value).startswith(says)


def test_the_faults_of_a_file_name_their_lines() -> None:
    lines = [line(), b"\n", line(), b"nonsense\n", line(custom_id="b", url="/v1/embeddings")]
    count, faults = check_file(lines, URL)
    assert count == 4
    assert [(fault.line, fault.code) for fault in faults] == [
        (3, "duplicate_custom_id"),
        (4, "invalid_json_line"),
        (5, "mismatched_url"),
    ]


def test_a_file_without_an_endpoint_takes_that_of_its_first_line() -> None:
    assert check_file([line(url="/v1/x"), line(custom_id="b", url="/v1/x")], "") == (2, [])
    assert check_file([line(url="/v1/x"), line(custom_id="b")], "")[1][0].code == "mismatched_url"


def test_an_empty_or_too_long_file_is_refused() -> None:
    assert check_file([b"\n"], URL)[1][0].code == "empty_file"
    lines = [line(custom_id=str(number)) for number in range(4)]
    assert check_file(lines, URL, max_lines=4) == (4, [])
    assert [fault.code for fault in check_file(lines, URL, max_lines=3)[1]] == ["too_many_requests"]


def test_a_file_of_nothing_but_faults_is_given_up() -> None:
    assert len(check_file([b"x"] * 10_000, URL)[1]) == MAX_FAULTS


def test_an_answer_is_an_output_line() -> None:
    result = make_result(make_job(), body=b'{"id":"c1"}')
    assert json.loads(outcome_line("7", "mine", result, Cause.EXPIRED)) == {
        "id": "batch_req_7",
        "custom_id": "mine",
        "response": {"status_code": 200, "request_id": "7", "body": {"id": "c1"}},
        "error": None,
    }


@pytest.mark.parametrize(
    ("changes", "code", "status"),
    [
        ({"cause": Cause.REFUSED, "status": 400}, None, 400),
        ({"cause": Cause.EXHAUSTED, "status": 502}, "attempts_exhausted", 502),
        ({"cause": Cause.EXHAUSTED, "status": 0}, "attempts_exhausted", None),
        ({"cause": Cause.CANCELLED, "status": 0}, "batch_cancelled", None),
        ({"cause": Cause.EXPIRED, "status": 0}, "batch_expired", None),
    ],
)
def test_a_failure_is_an_error_line(changes: dict[str, Any], code: str | None, status: int | None) -> None:
    shown = json.loads(outcome_line("7", "mine", make_result(make_job(), **changes), Cause.EXPIRED))
    assert (shown["error"] and shown["error"]["code"]) == code
    assert (shown["response"] and shown["response"]["status_code"]) == status


def test_a_request_without_a_result_says_why() -> None:
    shown = json.loads(outcome_line("7", "mine", None, Cause.CANCELLED))
    assert shown["response"] is None
    assert shown["error"]["code"] == "batch_cancelled"


def test_an_answer_that_is_no_json_is_kept_as_text() -> None:
    shown = json.loads(outcome_line("7", "mine", make_result(make_job(), body=b"\xffok"), Cause.EXPIRED))
    assert shown["response"]["body"] == "\ufffdok"


@given(
    total=st.integers(0, 60),
    most=st.integers(2, 20),
    blocked=st.sets(st.integers(0, 59)),
)
def test_every_line_is_asked_for_whatever_others_do(total: int, most: int, blocked: set[int]) -> None:
    pending = Pending(total, {})
    asked: set[int] = set()
    for _ in range(total + 1):
        lines = pending.some(most, total)
        assert len(set(lines)) == len(lines) <= most
        asked.update(lines)
        pending.note([(one, False) for one in lines if one not in blocked])
    assert asked == set(range(total))
    assert pending.count_below(total) == len({one for one in blocked if one < total})


def test_lines_that_are_not_put_are_not_asked_for() -> None:
    assert Pending(10, {0: False, 1: True}).some(8, 4) == [2, 3]
    assert Pending(10, {0: False, 1: True}).counts() == (1, 1)
