"""What a request body says about routing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN, MAX_PROMPT_TOKENS
from ext_proc.body import apis, openai
from ext_proc.body.apis import InvalidBodyError, ParsedBody, api_of

CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
)


def parse(path: str, body: bytes) -> ParsedBody:
    return apis.parse(api_of(path), body)


def prompt(path: str, **fields: Any) -> bytes:
    return parse(path, json.dumps({"model": "m", **fields}).encode()).prompt


def test_model_and_stream() -> None:
    parsed = parse(COMPLETIONS, b'{"model": "llama", "prompt": "p", "stream": true}')
    assert (parsed.model, parsed.stream) == ("llama", True)
    assert not parse(COMPLETIONS, b'{"model": "llama", "stream": "yes"}').stream


def test_completion_prompts_of_all_kinds() -> None:
    assert prompt(COMPLETIONS, prompt="grüße") == "grüße".encode()
    assert prompt(COMPLETIONS, prompt=["a", "b"]) == b"a\x01b"
    assert prompt(COMPLETIONS, prompt=[1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert prompt(COMPLETIONS, prompt=[[1], [2]]) == b"\x01\0\0\0\x01\x02\0\0\0"
    assert prompt(COMPLETIONS, prompt=[]) == b""
    assert prompt(COMPLETIONS) == b""
    assert prompt(COMPLETIONS, prompt=None) == b""
    assert prompt(EMBEDDINGS, input="e") == b"e"


@pytest.mark.parametrize("odd", [[1, "a"], [-1], [2**40], {"a": 1}, 3, [None], [True, None]])
def test_an_odd_prompt_is_the_servers_to_refuse(odd: object) -> None:
    assert prompt(COMPLETIONS, prompt=odd)


def test_half_a_surrogate_pair_does_not_fail() -> None:
    assert parse(COMPLETIONS, b'{"model": "m", "prompt": "\\ud83d"}').prompt


TURNS = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    {"role": "user", "content": "go on"},
]


@pytest.mark.parametrize("count", range(1, len(TURNS)))
def test_a_chat_begins_like_its_earlier_turns(count: int) -> None:
    assert prompt(CHAT, messages=TURNS).startswith(prompt(CHAT, messages=TURNS[:count]))


def test_chats_that_differ_in_a_role_or_an_image_differ() -> None:
    one = prompt(CHAT, messages=[{"role": "user", "content": "x"}])
    assert one != prompt(CHAT, messages=[{"role": "system", "content": "x"}])
    first, second = (
        prompt(CHAT, messages=[{"role": "user", "content": [{"image_url": {"url": name * 1000}}]}])
        for name in "ab"
    )
    assert first != second
    assert len(first) < 200


def test_tools_come_first_and_count() -> None:
    plain = prompt(CHAT, messages=TURNS)
    tools = prompt(CHAT, messages=TURNS, tools=[{"name": "f"}])
    assert tools.endswith(plain)
    assert tools != plain


def test_responses_input_is_text_or_items() -> None:
    text = prompt(RESPONSES, input="hello", instructions="be brief")
    items = prompt(RESPONSES, input=[{"role": "user", "content": "hello"}], instructions="be brief")
    assert text == items
    assert b"be brief" in text


def test_an_unknown_path_is_read_by_its_fields() -> None:
    assert b"x" in prompt("/v1/rerank", input="x")
    assert prompt("/v1/else", messages=TURNS) == prompt(CHAT, messages=TURNS)
    assert prompt("/v1/else", texts=["x"]) == b""


@pytest.mark.parametrize(
    "odd", ["text", [1], [None, ["x"]], [{"role": 3, "content": 4}], [{"content": [1, None]}], None]
)
def test_odd_messages_do_not_fail(odd: object) -> None:
    prompt(CHAT, messages=odd)


def test_deep_nesting_is_refused_wherever_it_is() -> None:
    deep = "[" * 300_000 + "]" * 300_000
    for field in ("prompt", "messages", "tools", "other"):
        with pytest.raises(InvalidBodyError):
            parse(CHAT, f'{{"model": "m", "{field}": {deep}}}'.encode())


def refusal(path: str, body: bytes) -> str:
    try:
        parse(path, body)
    except InvalidBodyError as error:
        return str(error)
    return ""


def test_moderate_nesting_either_parses_or_is_refused() -> None:
    for depth in (50, 300, 900, 1500):
        deep = "[" * depth + "]" * depth
        for path, field in ((COMPLETIONS, "prompt"), (CHAT, "messages"), (CHAT, "tools")):
            body = f'{{"model": "m", "messages": [], "{field}": {deep}}}'.encode()
            assert refusal(path, body) in {"", "the request body is nested too deeply"}


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(body: bytes) -> None:
    assert refusal(COMPLETIONS, body)  # a model is not found by chance


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (CHAT, True),
        (RESPONSES, True),
        ("/xcompletions", False),
        ("/v1/models", False),
        ("/openai" + CHAT, True),
    ],
)
def test_paths_match_by_whole_segments(path: str, known: bool) -> None:
    assert (api_of(path) is not None) is known


def test_a_large_body_of_tiny_values_is_refused_before_it_fills_memory() -> None:
    assert refusal(COMPLETIONS, b'{"model": "m", "prompt": [' + b"[]," * 5_000_000 + b"[]]}")
    assert not refusal(COMPLETIONS, b'{"model": "m", "prompt": [' + b"1000," * 400_000 + b"1]}")


@pytest.mark.parametrize("model", ["\\ud800", "a\\udfffb", "m" * 1025])
def test_a_model_that_cannot_be_a_label_is_refused(model: str) -> None:
    assert "model must be text" in refusal(CHAT, f'{{"model": "{model}", "messages": []}}'.encode())


LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (COMPLETIONS, {"prompt": "ü" * 3_000_000}),
    "texts": (COMPLETIONS, {"prompt": ["word"] * 300_000}),
    "token ids": (COMPLETIONS, {"prompt": [7] * 700_000}),
    "empty objects": (COMPLETIONS, {"prompt": [{}] * 500_000}),
    "messages": (CHAT, {"messages": [{"role": "user", "content": "x" * 100}] * 50_000}),
    "message parts": (CHAT, {"messages": [{"content": [{"text": "x"}] * 300_000}]}),
    "tools": (CHAT, {"messages": [], "tools": ["x" * 100] * 50_000}),
    "input": (RESPONSES, {"input": "x" * 3_000_000}),
}


@pytest.mark.parametrize("kind", LONG)
def test_only_the_part_of_a_long_prompt_that_can_be_matched_is_laid_out(kind: str) -> None:
    path, fields = LONG[kind]
    material = prompt(path, **fields)
    matched = MAX_PROMPT_TOKENS * BYTES_PER_TOKEN
    assert len(material) <= 2 * matched
    assert len(material) >= min(matched, 60_000)  # and no less than is matched, tiny pieces apart


def test_a_number_of_many_digits_is_no_work() -> None:
    assert prompt(COMPLETIONS, prompt=[10**63])
    assert parse(COMPLETIONS, b'{"model": "m", "prompt": [' + b"1" * 100_000 + b"]}").prompt == b"Infinity"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("image_url", True), ("video_url", True), ("audio_url", True), ("input_audio", True), ("file", False)],
)
def test_media_in_a_chat_shows_in_its_material(kind: str, expected: bool) -> None:
    part = {"type": kind, kind: {"url": "https://example.test/" + "x" * 400}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, part]}]
    assert openai.has_media(openai.bounded(openai.chat({"messages": messages}))) is expected


def test_a_chat_of_text_has_no_media() -> None:
    assert not openai.has_media(
        openai.bounded(openai.chat({"messages": [{"role": "u", "content": "image_url"}]}))
    )
