"""What the prompt of an OpenAI call is laid out as."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from body_reading import parse, prompt, refusal
from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN, MAX_PROMPT_TOKENS
from ext_proc.body.material import has_media

CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
)


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


TURNS: list[dict[str, Any]] = [
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


def common(one: bytes, other: bytes) -> int:
    """Return how many bytes two prompts have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


@pytest.mark.parametrize(
    ("path", "field", "values"),
    [
        (CHAT, "cache_salt", ("tenant-a", "tenant-b")),
        (CHAT, "tools", ([{"name": "f"}], [{"name": "g"}])),
        (CHAT, "chat_template", ("{{ a }}", "{{ b }}")),
        (CHAT, "lora_request", ({"lora_name": "a"}, {"lora_name": "b"})),
        (COMPLETIONS, "cache_salt", ("tenant-a", None)),
        (RESPONSES, "cache_salt", ("tenant-a", "tenant-b")),
        (RESPONSES, "instructions", ("be brief", "be long")),
        ("/v1/messages", "system", ("be brief", [{"type": "text", "text": "be long"}])),
        ("/v1/messages", "tools", ([{"name": "f"}], None)),
        ("/generate", "extra_key", ("a", "b")),
        ("/generate", "lora_path", ("a", "b")),
        ("/generate", "image_data", ("a" * 500, "b" * 500)),
        ("/inference/v1/generate", "cache_salt", ("a", "b")),
        ("/inference/v1/generate", "features", ([{"mm_hash": "a"}], [{"mm_hash": "b"}])),
        ("/v1/score", "cache_salt", ("a", "b")),
    ],
)
def test_what_keeps_caches_apart_comes_before_the_text(
    path: str, field: str, values: tuple[object, object]
) -> None:
    text = "the same long text " * 50
    known: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": text}]},
        "/v1/messages": {"messages": [{"role": "user", "content": text}]},
        RESPONSES: {"input": text},
        "/inference/v1/generate": {"token_ids": list(range(500))},
        "/generate": {"text": text},
        "/v1/score": {"text_1": text, "text_2": text},
    }
    fields = known.get(path, {"prompt": text})
    one, other = (prompt(path, **fields, **{field: value}) for value in values)
    assert common(one, other) < 64  # less than the smallest block of the prefix index
    assert one[-200:] == other[-200:]


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
    assert prompt("/v1/else", messages=TURNS) == prompt(CHAT, messages=TURNS)
    assert prompt("/v1/else", prompt="x") == b"x"
    assert prompt("/v1/else", texts=["x"]) == b""


@pytest.mark.parametrize(
    "odd", ["text", [1], [None, ["x"]], [{"role": 3, "content": 4}], [{"content": [1, None]}], None]
)
def test_odd_messages_do_not_fail(odd: object) -> None:
    prompt(CHAT, messages=odd)


def test_deep_nesting_is_refused_wherever_it_is() -> None:
    deep = "[" * 300_000 + "]" * 300_000
    for field in ("prompt", "messages", "tools", "other"):
        body = f'{{"model": "m", "{field}": {deep}}}'.encode()
        assert refusal(CHAT, body) == "the request body is nested too deeply"


def test_moderate_nesting_either_parses_or_is_refused() -> None:
    for depth in (50, 300, 900, 1500):
        deep = "[" * depth + "]" * depth
        for path, field in ((COMPLETIONS, "prompt"), (CHAT, "messages"), (CHAT, "tools")):
            body = f'{{"model": "m", "messages": [], "{field}": {deep}}}'.encode()
            assert refusal(path, body) in {"", "the request body is nested too deeply"}


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(body: bytes) -> None:
    assert refusal(COMPLETIONS, body)  # a model is not found by chance


@pytest.mark.parametrize("model", ["\\ud800", "a\\udfffb", "m" * 1025])
def test_a_model_that_cannot_be_a_label_is_refused(model: str) -> None:
    assert "model must be text" in refusal(CHAT, f'{{"model": "{model}", "messages": []}}'.encode())


LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (COMPLETIONS, {"prompt": "ü" * 1_500_000}),
    "texts": (COMPLETIONS, {"prompt": ["word"] * 300_000}),
    "token ids": (COMPLETIONS, {"prompt": [7] * 700_000}),
    "empty objects": (COMPLETIONS, {"prompt": [{}] * 500_000}),
    "messages": (CHAT, {"messages": [{"role": "user", "content": "x" * 100}] * 20_000}),
    "message parts": (CHAT, {"messages": [{"content": [{"text": "x"}] * 300_000}]}),
    "tools": (CHAT, {"messages": [], "tools": ["x" * 100] * 20_000}),
    "input": (RESPONSES, {"input": "x " * 1_000_000}),
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
    parse(COMPLETIONS, b'{"model": "m", "prompt": [' + b"1" * 100_000 + b"]}")


def test_a_base64_text_is_laid_out_as_its_digest_whole_or_in_a_large_body() -> None:
    image = "data:image/png;base64," + "A" * 100_000
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]
    small = prompt(CHAT, messages=chat)
    assert len(small) < 200
    assert prompt(CHAT, messages=chat, metadata="x" * 1_000_000) == small
    other = json.loads(json.dumps(chat).replace("AAAA", "BBBB", 1))
    assert prompt(CHAT, messages=other, metadata="x" * 1_000_000) != small


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("image_url", True), ("video_url", True), ("audio_url", True), ("input_audio", True), ("file", False)],
)
@pytest.mark.parametrize("length", [4, 400])
def test_media_in_a_chat_shows_in_its_material(kind: str, expected: bool, length: int) -> None:
    part = {"type": kind, kind: {"url": "https://example.test/" + "x" * length}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, part]}]
    assert has_media(prompt(CHAT, messages=messages)) is expected


def test_a_chat_of_text_has_no_media() -> None:
    assert not has_media(prompt(CHAT, messages=[{"role": "u", "content": "image_url"}]))
