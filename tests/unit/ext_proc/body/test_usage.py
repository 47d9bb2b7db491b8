"""Token usage from responses, whatever the cuts."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.body.usage import MAX_KEPT_BYTES, DocumentUsage, StreamUsage, Usage, UsageReader


def counts(usage: Usage | None) -> tuple[int, int, int] | None:
    return (usage.input_tokens, usage.output_tokens, usage.cached_tokens) if usage else None


def read(reader: UsageReader, *chunks: bytes) -> tuple[int, int, int] | None:
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    return counts(reader.usage)


STREAM = (
    b'data: {"choices":[{"delta":{"content":"say \\"usage\\": {\\"prompt_tokens\\": 9}"}}],"usage":null}\n\n'
    b': comment with "usage": {"prompt_tokens": 8}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":5,'
    b'"prompt_tokens_details":{"cached_tokens":3}}}\r\n\r\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read(StreamUsage(), *(STREAM[a:b] for a, b in pairwise(edges))) == (11, 5, 3)


def test_a_stream_byte_by_byte() -> None:
    assert read(StreamUsage(), *(bytes((byte,)) for byte in STREAM)) == (11, 5, 3)


def test_the_responses_api_has_usage_inside_its_last_event() -> None:
    event = {
        "type": "response.completed",
        "response": {"id": "r", "usage": {"input_tokens": 4, "output_tokens": 2}},
    }
    text = f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()
    assert read(StreamUsage(), text) == (4, 2, 0)


def test_the_last_usage_of_a_stream_counts() -> None:
    lines = [b'data: {"usage": {"completion_tokens": %d}}\n' % count for count in (1, 2, 3)]
    assert read(StreamUsage(), *lines) == (0, 3, 0)


def test_a_line_without_end_is_read_at_the_close_of_the_stream() -> None:
    assert read(StreamUsage(), b'data: {"usage": {"prompt_tokens": 1}}') == (1, 0, 0)


def test_an_endless_line_is_skipped_and_the_next_one_read() -> None:
    reader = StreamUsage()
    for _ in range(4):
        reader.feed(b'data: "usage": ' + b"x" * MAX_KEPT_BYTES)
    assert read(reader, b'"\n', STREAM) == (11, 5, 3)


def test_plain_json_in_pieces() -> None:
    body = json.dumps({"choices": [{"text": "x" * 300_000}], "usage": {"prompt_tokens": 7}}).encode()
    assert read(DocumentUsage(), *(body[at : at + 1000] for at in range(0, len(body), 1000))) == (7, 0, 0)
    assert read(DocumentUsage(), body) == (7, 0, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"usage": null}',
        b'{"usage": "none"}',
        b'{"usage": {"prompt_tok',
        b'{"usage": ' + b'{"a":' * 5000,
        b'{"usage" 3}',
        b'\xff"usage": {\xff}',
        b'{"text": "\\"usage\\": {\\"prompt_tokens\\": 1}"}',
    ],
)
def test_what_holds_no_usage_gives_none(body: bytes) -> None:
    assert read(DocumentUsage(), body) is None
    assert read(StreamUsage(), b"data: " + body + b"\n") is None


@pytest.mark.parametrize("value", ["true", "-1", "1e400", '"7"', "[1]", "9" * 40])
def test_counts_that_are_none_read_as_zero(value: str) -> None:
    assert read(DocumentUsage(), f'{{"usage": {{"prompt_tokens": {value}}}}}'.encode()) == (0, 0, 0)


@given(st.binary(max_size=300))
def test_any_bytes_are_let_pass(chunk: bytes) -> None:
    read(StreamUsage(), b'data: "usage":' + chunk, chunk)
    read(DocumentUsage(), b'"usage": ' + chunk, chunk)


GIVEN = b'data: {"usage":{"prompt_tokens":11}}\n'


@pytest.mark.parametrize("reader", [StreamUsage, DocumentUsage])
@pytest.mark.parametrize("noise", [b'data: "usage"\n', b'data: {"usage":{\n', b'data: "usage":[]\n'])
def test_usage_is_not_looked_for_behind_any_number_of_false_ones(
    reader: type[StreamUsage | DocumentUsage], noise: bytes
) -> None:
    assert read(reader(), noise, b"\n" + GIVEN) == (11, 0, 0)
    assert read(reader(), GIVEN + noise * 1000 + b'data: "usage":{"\n') is None
