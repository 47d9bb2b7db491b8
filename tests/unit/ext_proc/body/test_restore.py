"""The model's name in responses: one span changes, whatever the cuts, and nothing else."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.body.response.restore import NameRestorer

ASKED, SENT = 'food-"review"', "llama/3.1-8b"


def cut(text: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({each % len(text) for each in cuts} - {0}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def restored(pieces: Iterable[bytes], *, events: bool, sent: str = SENT) -> bytes:
    restorer = NameRestorer(ASKED, sent, events=events)
    return b"".join([restorer.feed(piece) for piece in pieces]) + restorer.rest()


def named(text: str, name: str) -> bytes:
    return text.replace("NAME", json.dumps(name)).encode()


CHAT_EVENT = 'data: {"id":"c","model":NAME,"choices":[{"delta":{"content":"the model llama/3.1-8b"}}]}\n\n'
STREAM = (
    'data: {"id": "c", "object": "x", "model": NAME, "n": 9007199254740993, "choices": []}\r\n\r\n'
    + CHAT_EVENT * 4
    + "event: message_start\n"
    + 'data: {"type":"message_start","message":{"content":[{"model":"llama/3.1-8b"}],"model":NAME}}\n\n'
    + ': a comment {"model":"llama/3.1-8b"}\n\n'
    + 'data: {"response":{"usage":null,"model" : NAME},"x":{"model":"llama/3.1-8b"}}\n\n'
    + 'data: {"model": \ndata: NAME}\n\n'
    + 'data: {"model":"other","x":1.10,"y":-0,"z":"\\u003c"}\n\n'
    + 'data: {"model":"llama/3.1-8b-and-far-more-than-that'
    + "x" * 500
    + '"}\n\n'
    + "data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, 5000), max_size=12))
@settings(max_examples=80, deadline=None)
def test_only_the_names_in_their_places_change_whatever_the_cuts(cuts: list[int]) -> None:
    before = named(STREAM, SENT)
    assert restored(cut(before, cuts), events=True) == named(STREAM, ASKED)


def test_byte_by_byte_and_event_by_event() -> None:
    before, after = named(STREAM, SENT), named(STREAM, ASKED)
    assert restored((bytes((byte,)) for byte in before), events=True) == after
    assert restored([part + b"\n\n" for part in before.split(b"\n\n")[:-1]], events=True) == after


def test_an_event_that_begins_like_the_one_before_may_be_followed_by_another_in_its_piece() -> None:
    event = CHAT_EVENT.removesuffix("\n")
    for between in ("\n", "\r\n", ""):
        pieces = [CHAT_EVENT, CHAT_EVENT, f"{event}{between}{CHAT_EVENT}"]
        text = "".join(pieces)
        whole = restored([named(text, SENT)], events=True)
        assert restored([named(piece, SENT) for piece in pieces], events=True) == whole


def test_nothing_is_held_but_a_name() -> None:
    restorer = NameRestorer(ASKED, SENT, events=True)
    event = named(CHAT_EVENT, SENT)
    at = event.index(b'"llama')
    assert restorer.feed(event[: at + 3]) == event[:at]
    assert restorer.feed(event[at + 3 :]) == named(CHAT_EVENT, ASKED)[at:]
    plain = b'data: {"id":"c","choices":['
    assert restorer.feed(plain) is plain


@pytest.mark.parametrize(
    "document",
    [
        '{"id":"c", "model": NAME ,"usage":{"a":1e400, "b":-0},"choices":[{"model":"llama/3.1-8b"}]}',
        '{"choices":[{"text":"' + "x" * 100_000 + '"}],"data":[[1.10,2],[3]],"model":NAME}\n',
        '{"model":NAME,"model":"llama/3.1-8b"}',
        '{"object":"response","response":{"model":NAME}}',
        '{"model":7}',
        '{"model":["llama/3.1-8b"]}',
        '["model","llama/3.1-8b"]',
        '{"model":"llama/3.1-8b',
        '{"model',
        "no json",
    ],
)
@given(cuts=st.lists(st.integers(0, 110_000), max_size=6))
@settings(max_examples=20, deadline=None)
def test_a_document_cut_anywhere(document: str, cuts: list[int]) -> None:
    before = named(document, SENT)
    assert restored(cut(before, cuts), events=False) == named(document, ASKED)


def test_a_name_is_compared_as_it_reads() -> None:
    before = rb'{"model":"llama\/3.1\u002d8b","x":"llama\/3.1"}'
    after = b'{"model":' + json.dumps(ASKED).encode() + rb',"x":"llama\/3.1"}'
    assert restored([before], events=False) == after
    assert restored([before[:20], before[20:]], events=False) == after


def test_a_name_outside_ascii_goes_out_as_utf_8() -> None:
    restorer = NameRestorer("größe-模型", "m", events=False)
    assert restorer.feed(b'{"model":"m"}') == '{"model":"größe-模型"}'.encode()


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.booleans())
def test_other_bytes_pass_as_they_are(pieces: list[bytes], events: bool) -> None:
    assert restored(pieces, events=events, sent="no such name") == b"".join(pieces)
