"""What is read from responses: the same whatever the cuts."""

import json
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.body.response.readers import MAX_CARRY, MAX_HELD, DocumentReader, StreamReader
from ext_proc.body.usage import Usage


class Facts(NamedTuple):
    usage: tuple[int, int, int] | None
    tokens: int
    first: int
    """Byte before which the first event with a token ended, rounded up to the end of its piece; 0: none."""
    failed: bool
    response_id: str


def counts(usage: Usage | None) -> tuple[int, int, int] | None:
    return (usage.input_tokens, usage.output_tokens, usage.cached_tokens) if usage else None


def read(pieces: Iterable[bytes], reader: StreamReader | DocumentReader | None = None) -> Facts:
    reader = reader or StreamReader()
    first = at = 0
    for piece in pieces:
        at += len(piece)
        if reader.feed(piece) and not first:
            first = at
    return Facts(counts(reader.close()), reader.tokens, first, reader.failed, reader.response_id)


def cut(text: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({each % len(text) for each in cuts} - {0}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def event(fields: object, name: str = "", end: str = "\n", **options: Any) -> bytes:
    head = f"event: {name}{end}" if name else ""
    return f"{head}data: {json.dumps(fields, **options)}{end}{end}".encode()


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "logprobs": None}], **more}


USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
CHAT = (
    event(chunk({"role": "assistant", "content": ""}, usage=None))
    + event(chunk({"content": 'say "usage": {"prompt_tokens": 9}'}, usage=None))
    + b': comment with "usage": {"prompt_tokens": 8}\n\n'
    + b"".join(event(chunk({"content": f" ü{n}\n"}, usage=None), ensure_ascii=False) for n in range(3))
    + event(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, usage=None))
    + event(chunk({}, usage=None))
    + event({"choices": [], "usage": USAGE})
    + b"data: [DONE]\n\n"
)
COMPLETION = (
    b"".join(event({"choices": [{"text": text}]}) for text in ("", "a", "b", "c")) + b"data: [DONE]\n\n"
)
MESSAGES = b"".join(
    event(fields, str(fields["type"]))
    for fields in (
        {
            "type": "message_start",
            "message": {
                "id": "m",
                "content": [],
                "usage": {
                    "input_tokens": 10,
                    "cache_read_input_tokens": 7,
                    "cache_creation_input_tokens": 1,
                    "output_tokens": 1,
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " there"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
        {"type": "message_stop"},
    )
)
RESPONSES = b"".join(
    event(fields, str(fields["type"]))
    for fields in (
        {"type": "response.created", "response": {"id": "resp_1", "usage": None}},
        {"type": "response.output_text.delta", "delta": "Hi", "sequence_number": 4},
        {"type": "response.output_text.delta", "delta": "!", "sequence_number": 5},
        {
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "output": [{"text": "x" * 70_000, "logprobs": [{"token": "x", "top": [{}]}] * 500}],
                "usage": {
                    "input_tokens": 4,
                    "output_tokens": 2,
                    "input_tokens_details": {"cached_tokens": 1},
                },
            },
        },
    )
)
SGLANG = b"".join(
    event({"text": "a" * n, "meta_info": {"prompt_tokens": 6, "completion_tokens": n, "cached_tokens": 2}})
    for n in (1, 2, 3)
)
STREAMS = {
    "chat": (CHAT, (11, 5, 3), 5),
    "completion": (COMPLETION, None, 3),
    "messages": (MESSAGES, (18, 15, 7), 2),
    "responses": (RESPONSES, (4, 2, 1), 2),
    "sglang": (SGLANG, (6, 3, 2), 3),
    "chat, CR LF": (CHAT.replace(b"\n", b"\r\n"), (11, 5, 3), 5),
    "byte order mark": (b"\xef\xbb\xbf" + CHAT, (11, 5, 3), 5),
    "no last newline": (CHAT.removesuffix(b"\n\ndata: [DONE]\n\n"), (11, 5, 3), 5),
    "data over two lines": (
        b'data: {"choices": [],\ndata: "usage": {"prompt_tokens": 3}}\n\n' + COMPLETION,
        (3, 0, 0),
        3,
    ),
    "no space after the colon": (CHAT.replace(b"data: ", b"data:"), (11, 5, 3), 5),
}
streams = pytest.mark.parametrize("name", STREAMS)


@streams
def test_a_stream_event_by_event(name: str) -> None:
    text, usage, tokens = STREAMS[name]
    pieces = [part + b"\n\n" for part in text.split(b"\n\n") if part]
    facts = read(pieces)
    assert (facts.usage, facts.tokens, facts.failed) == (usage, tokens, False)


@streams
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=12))
def test_a_stream_cut_anywhere(name: str, cuts: list[int]) -> None:
    text, usage, tokens = STREAMS[name]
    facts = read(cut(text, cuts))
    assert (facts.usage, facts.tokens) == (usage, tokens)
    first = read(cut(text, range(len(text)))).first if len(text) < 5000 else 0
    if first:
        assert facts.first == next(
            end for end in (*sorted(e % len(text) for e in cuts), len(text)) if end >= first
        )


@streams
def test_a_stream_byte_by_byte(name: str) -> None:
    text, usage, tokens = STREAMS[name]
    facts = read(bytes((byte,)) for byte in text)
    assert (facts.usage, facts.tokens) == (usage, tokens)


def test_the_first_token_is_not_the_role_nor_the_first_event() -> None:
    for text, before in (
        (CHAT, b"\n\n"),
        (MESSAGES, b'"type": "ping"}\n\n'),
        (RESPONSES, b'"usage": null}}\n\n'),
    ):
        start = text.index(before) + len(before)
        assert read([text[:start]]).first == 0
        assert read([text[: text.index(b"\n\n", start) + 2]]).first


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"tool_calls": [{"index": 0}]},
        {"content": None, "refusal": "no"},
        {"role": "assistant", "content": "x"},
    ],
)
def test_anything_generated_is_a_token(delta: dict[str, Any]) -> None:
    assert read([event(chunk(delta))]).tokens == 1


@pytest.mark.parametrize(
    "delta",
    [{}, {"role": "assistant"}, {"role": "assistant", "content": "", "tool_calls": []}, {"content": None}],
)
def test_what_holds_nothing_generated_is_no_token(delta: dict[str, Any]) -> None:
    assert read([event(chunk(delta))]).tokens == 0
    assert read([event(chunk({"content": "x"})), event(chunk(delta))]).tokens == 1


def test_events_of_an_unknown_form_count_as_tokens() -> None:
    assert read([event({"partial_image": "aGk="}), event({"partial_image": "aGk="})]).tokens == 2


def test_usage_in_every_event_and_the_last_counts() -> None:
    events = [
        event(chunk({"content": "x"}, usage={"prompt_tokens": 4, "completion_tokens": n})) for n in (1, 2, 3)
    ]
    assert read(events)[:2] == ((4, 3, 0), 3)


def test_an_event_like_the_one_before_is_still_read() -> None:
    """Events that begin alike are compared, not parsed: their ends must count all the same."""
    alike = event(chunk({"content": "x"}, usage=None))
    with_usage = event(chunk({"content": "x"}, usage={"prompt_tokens": 4}))
    empty = event(chunk({"content": ""}, usage=None))
    two = alike + alike
    facts = read([alike, alike, empty, two, alike, with_usage])
    assert (facts.usage, facts.tokens) == ((4, 0, 0), 6)


ALIKE = (
    event(chunk({"content": "x"}, usage=None)),
    event(chunk({"content": 'a "quoted" word\\\n'}, usage=None)),
    event(chunk({"content": ""}, usage=None)),
    event(chunk({"content": "x"}, usage={"prompt_tokens": 4, "completion_tokens": 2})),
    event(chunk({"content": "x", "tool_calls": None}, usage=None)),
    event(chunk({"role": "assistant"}, usage=None)),
    event({"choices": [], "usage": {"prompt_tokens": 7}}),
    event({"error": {"message": "x"}}),
    b"data: [DONE]\n\n",
    b": comment\n\n",
)


@given(
    groups=st.lists(st.lists(st.sampled_from(ALIKE), min_size=1, max_size=6), min_size=1, max_size=6),
    learned=st.integers(0, 2),
)
@settings(max_examples=200, deadline=None)
def test_events_that_share_a_piece_say_the_same_as_one_by_one(
    groups: list[list[bytes]], learned: int
) -> None:
    """A proxy joins events that come close together, also those that begin alike and end otherwise."""
    before = [ALIKE[0]] * learned
    # A fresh reader an event remembers nothing, so that each of these events is parsed.
    alone = [read([each]) for group in groups for each in group]
    together = read([*before, *map(b"".join, groups)])
    single = read([*before, *(each for group in groups for each in group)])
    assert together.tokens == single.tokens == learned + sum(each.tokens for each in alone)
    assert together.failed == single.failed == any(each.failed for each in alone)
    assert together.usage == single.usage


@pytest.mark.parametrize(
    "fields",
    [
        {"error": {"message": "out of memory", "code": 500}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
        {"type": "response.failed", "response": {"id": "r", "error": {}}},
        {"choices": [], "error": {"message": "x"}},
    ],
)
def test_an_error_in_the_stream_is_noticed(fields: dict[str, Any]) -> None:
    for pieces in ([event(fields)], [bytes((byte,)) for byte in event(fields)]):
        facts = read([event(chunk({"content": "x"})), *pieces])
        assert facts.failed
        assert facts.tokens == 1
    assert not read([event(chunk({"content": "x"}, error=None))]).failed


def test_the_id_of_a_response_is_known_from_its_first_event() -> None:
    reader = StreamReader()
    reader.feed(RESPONSES[: RESPONSES.index(b"\n\n") + 2])
    assert reader.response_id == "resp_1"
    document = json.dumps({"id": "resp_2", "object": "response", "output": []}).encode()
    assert read([document], DocumentReader()).response_id == "resp_2"
    assert read([b'{"id": "c", "object": "chat.completion"}'], DocumentReader()).response_id == ""


DOCUMENTS: dict[str, tuple[dict[str, Any], tuple[int, int, int] | None]] = {
    "chat": ({"choices": [{"text": "y"}], "usage": USAGE}, (11, 5, 3)),
    "long": ({"choices": [{"text": "x" * 300_000}], "usage": USAGE}, (11, 5, 3)),
    "usage first": ({"usage": {"prompt_tokens": 7}, "results": [{"x": "y" * 1000}] * 300}, (7, 0, 0)),
    "embedding": ({"data": [{"embedding": [0.25] * 50_000}], "usage": {"prompt_tokens": 7}}, (7, 0, 0)),
    "anthropic": ({"usage": {"input_tokens": 2, "cache_read_input_tokens": 3}}, (5, 0, 3)),
    "nested elsewhere": ({"metadata": {"usage": {"prompt_tokens": 1}}}, None),
    "in text": ({"text": '"usage": {"prompt_tokens": 1}'}, None),
    "none": ({"usage": None}, None),
}


@pytest.mark.parametrize("name", DOCUMENTS)
@given(cuts=st.lists(st.integers(0, 400_000), max_size=8))
@settings(max_examples=15, deadline=None)
def test_a_document_cut_anywhere(name: str, cuts: list[int]) -> None:
    fields, usage = DOCUMENTS[name]
    assert read(cut(json.dumps(fields).encode(), cuts), DocumentReader()).usage == usage


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"usage": null}',
        b'{"usage": "none"}',
        b'{"usage": [1]}',
        b'{"usage" 3}',
        b'["usage", {"prompt_tokens": 1}]',
        b'{"text": "\\"usage\\": {\\"prompt_tokens\\": 1}"}',
        b'{"a":' * 5000,
        b'{"message": "usage"}',
        b"\xff",
    ],
)
def test_what_holds_no_usage_gives_none(body: bytes) -> None:
    assert read([body], DocumentReader()).usage is None
    assert read([b"data: " + body + b"\n"]).usage is None
    assert read([b"data: ", body]).usage is None


@pytest.mark.parametrize("value", ["true", "-1", '"7"', "[1]", "9" * 40, "1.0"])
def test_counts_that_are_none_read_as_zero(value: str) -> None:
    body = f'{{"usage": {{"prompt_tokens": {value}}}}}'.encode()
    assert read([body], DocumentReader()).usage == (0, 0, 0)
    assert read(bytes((byte,)) for byte in b"data: " + body + b"\n\n").usage == (0, 0, 0)


@given(
    st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8),
    st.sampled_from([b"", b"data: ", b"data: {"]),
)
def test_any_bytes_give_the_same_facts_whatever_the_cuts(pieces: list[bytes], start: bytes) -> None:
    text = start + b"".join(pieces)
    whole = read([text])
    assert read([start, *pieces] if start else pieces)._replace(first=0) == whole._replace(first=0)
    assert read(bytes((byte,)) for byte in text)._replace(first=0) == whole._replace(first=0)
    assert (
        read([text], DocumentReader()).usage
        == read(cut(text, range(0, len(text), 3)), DocumentReader()).usage
    )


def held_by(reader: StreamReader | DocumentReader, pieces: list[bytes]) -> int:
    tracemalloc.start()
    try:
        for piece in pieces:
            reader.feed(piece)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_what_is_held_does_not_grow_with_the_response() -> None:
    line = [b'data: {"x": "'] + [b"x" * 16_384] * 2000
    many = [event(chunk({"content": "y" * 1000}))] * 5000
    keys = [b'data: {"delta": {'] + [b'"key%d": "value",' % n for n in range(20_000)]
    for pieces in (line, many, keys, [b"x" * MAX_CARRY] * 100):
        assert held_by(StreamReader(), pieces) < 48_000
    assert held_by(DocumentReader(), [b'{"x": "'] + [b"x" * MAX_HELD] * 2000) < 48_000
