"""Jobs and results: bounds, and what the wire keeps."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_contracts import make_job, make_result
from batch_subscriber.errors import JobError
from batch_subscriber.jobs import MAX_BODY_BYTES, MAX_FAILURES, Cause, Job
from batch_subscriber.wire import decode_job, decode_result, encode_job, encode_result

VALID = {"id": "a", "generation": "g", "path": "/v1/completions", "body": b"{}"}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("id", "", "1 to 256"),
        ("id", "x" * 257, "1 to 256"),
        ("id", "a\n", "printable"),
        ("generation", "a b", "letters"),
        ("path", "v1", "begin with /"),
        ("path", "/v1 HTTP/1.1", "visible"),
        ("path", "/v1/../admin", "no empty segment"),
        ("path", "/v1/..", "no empty segment"),
        ("path", "/v1/.%2E/admin", "no empty segment"),
        ("path", "/v1/./chat", "no empty segment"),
        ("path", "//admin/v1", "no empty segment"),
        ("path", "/v1\\..\\admin", "no backslash"),
        ("body", b"x" * (MAX_BODY_BYTES + 1), "bytes"),
        ("headers", [("a b", "c")], "no header name"),
        ("headers", [("Host", "c")], "set by the subscriber"),
        ("headers", [("x", "a\r\nb")], "no header may have"),
        ("headers", [("x", "y")] * 33, "at most 32"),
        ("attempts", -1, "negative"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(field: str, value: object, says: str) -> None:
    with pytest.raises(JobError, match=says) as refused:
        Job.checked(**{**VALID, field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions/", "/v1/files?next=../a//b", "/v1/..a/.b/c."])
def test_a_path_that_stays_where_it_is_appended_is_taken(path: str) -> None:
    assert Job.checked(**{**VALID, "path": path}).path == path


@given(
    body=st.binary(max_size=200),
    name=st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20),
    deadline=st.none() | st.floats(1, 1e11),
    attempts=st.integers(0, 9),
)
def test_the_wire_keeps_a_job(body: bytes, name: str, deadline: float | None, attempts: int) -> None:
    job = make_job(id=name, group=name, body=body, deadline=deadline)
    for number in range(attempts):
        job = job.failed(float(number), name)
    assert decode_job(encode_job(job)) == job


@given(body=st.binary(max_size=200), cause=st.sampled_from(Cause), status=st.integers(0, 599))
def test_the_wire_keeps_a_result(body: bytes, cause: Cause, status: int) -> None:
    result = make_result(make_job(), body=body, cause=cause, status=status)
    line = encode_result(result)
    assert b"\n" not in line
    assert decode_result(line) == result


def test_a_foreign_message_may_say_little() -> None:
    data = json.dumps({"id": "a", "path": "/v1/completions", "body": {"model": "m", "n": 1}}).encode()
    job = decode_job(data, generation="message-7", submitted_at=12.5)
    assert (job.generation, job.submitted_at, job.body) == ("message-7", 12.5, b'{"model":"m","n":1}')


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"path":"/","body":"","generation":"g"}', "id: is missing"),
        (b'{"id":1,"path":"/","body":"","generation":"g"}', "id: must be a string"),
        (b'{"id":"a","path":"/","body":"","generation":"g","prio":1}', "prio: is no field"),
        (b'{"id":"a","path":"/","body":"","generation":"g","deadline":"x"}', "deadline: must be a number"),
        (b'{"id":"a","path":"/","body":"","generation":"g","deadline":NaN}', "deadline: must be a number"),
        (b'{"id":"a","path":"/","body":"\\ud800","generation":"g"}', "lone surrogate"),
        (b'{"id":"a","path":"/","body_base64":"!","generation":"g"}', "no base64"),
        (b'{"id":"a","path":"/","body":"","generation":"g","headers":[1]}', "headers: must be"),
        (b'{"id":"a","path":"/","body":"","generation":"g","failures":[1]}', "failures: must be"),
    ],
)
def test_what_is_no_job_is_refused_with_its_fault(data: bytes, says: str) -> None:
    with pytest.raises(JobError, match=says):
        decode_job(data)


def test_a_job_carries_its_last_failures_only() -> None:
    job = make_job()
    for number in range(MAX_FAILURES + 3):
        job = job.failed(float(number), "x" * 10_000)
    assert job.attempts == MAX_FAILURES + 3
    assert [failure.at for failure in job.failures] == [3.0 + number for number in range(MAX_FAILURES)]
    assert len(job.failures[0].cause) == 500


def test_a_replay_is_a_new_generation_and_the_same_one_twice() -> None:
    job = make_job(deadline=2.0).failed(1.0, "502")
    replay = job.replayed(9.0)
    assert replay.generation != job.generation
    assert (replay.attempts, replay.failures, replay.deadline, replay.submitted_at) == (0, (), None, 9.0)
    assert job.replayed(10.0).generation == replay.generation
    assert replay.replayed(11.0).generation != replay.generation
