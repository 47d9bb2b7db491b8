"""gRPC messages: vLLM's engine, and Vertex AI's wrapped JSON."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from body_reading import in_pieces, parse, refusal
from ext_proc.body.apis import api_of

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
CHAT = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def text(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def frame(message: bytes, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message


IDS = [1, 127, 128, 300, 70_000, 2**32 - 1]
TOKENIZED = text(2, text(1, b"for reference") + text(2, b"".join(varint(each) for each in IDS)))
REQUEST = frame(text(1, b"r-1") + TOKENIZED + text(4, whole(8, 77)) + whole(5, 1))


@given(cuts=st.lists(st.integers(0, len(REQUEST)), max_size=5))
def test_a_generate_request_is_read_whatever_the_cuts(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(REQUEST)]
    pieces = [REQUEST[a:b] for a, b in itertools.pairwise(edges)]
    parsed = in_pieces(GENERATE, pieces)
    assert parsed.prompt == b"".join(each.to_bytes(4, "little") for each in IDS)
    assert (parsed.model, parsed.stream, parsed.max_tokens) == ("", True, 77)


def test_a_prompt_of_text_is_read() -> None:
    assert parse(GENERATE, frame(text(3, "grüße".encode()))).prompt == "grüße".encode()


def test_a_long_prompt_is_laid_out_to_the_limit() -> None:
    ids = b"".join(varint(each) for each in range(100, 100_100))
    parsed = in_pieces(GENERATE, [frame(text(2, text(2, ids)))])
    assert parsed.prompt == b"".join(each.to_bytes(4, "little") for each in range(100, 100_100))


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\x09abc", frame(b"\xff" * 20), frame(b"", compressed=1)])
def test_a_broken_message_is_the_servers_to_refuse(body: bytes) -> None:
    assert refusal(GENERATE, body) == ""


def test_vertex_wraps_a_chat() -> None:
    chat = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    message = text(1, b"projects/p") + text(
        2, text(1, b"application/json") + text(2, json.dumps(chat).encode())
    )
    parsed = parse(CHAT, frame(message))
    assert (parsed.model, parsed.max_tokens, parsed.stream) == ("m", 9, True)
    assert parsed.prompt == parse("/v1/chat/completions", json.dumps(chat).encode()).prompt
    raw = CHAT.replace("ChatCompletions", "RawPredict")
    assert api_of(raw) is api_of(CHAT)


@given(st.binary(max_size=120))
def test_any_bytes_do_not_fail(body: bytes) -> None:
    for path in (GENERATE, CHAT):
        assert refusal(path, frame(body)) in {"", "the model must be text of at most 1024 characters"}
