"""Request bodies checked, answers formatted."""

import hashlib
import json
from itertools import pairwise

import pytest

from model_server_sim.protocol import (
    ApiError,
    Generation,
    Limits,
    SseWriter,
    Usage,
    answer,
    lora_name,
    parse,
    tokenized,
)

LIMITS = Limits(
    models=("base", "alias"),
    adapters=("tuned",),
    max_model_len=100,
    block_size=4,
    mean_output_tokens=20,
    seed=1,
)


def parsed(chat: bool = False, **fields: object) -> Generation:
    return parse(json.dumps(fields).encode(), LIMITS, chat=chat)


USER = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("chat", "body", "status", "param"),
    [
        pytest.param(False, b"{", 400, None, id="cut-json"),
        pytest.param(False, b"\xff\xfe", 400, None, id="no-text"),
        pytest.param(False, b"[" * 100_000, 400, None, id="deep-nesting"),
        pytest.param(False, b"[]", 400, None, id="no-object"),
        pytest.param(False, b"{}", 400, "prompt", id="no-prompt"),
        pytest.param(False, b'{"prompt": ["a", "b"]}', 400, "prompt", id="two-prompts"),
        pytest.param(False, b'{"prompt": [-1]}', 400, "prompt", id="negative-token"),
        pytest.param(False, b'{"prompt": "\\ud800"}', 400, "prompt", id="lone-surrogate"),
        pytest.param(False, b'{"prompt": "a", "model": "other"}', 404, "model", id="unknown-model"),
        pytest.param(False, b'{"prompt": "a", "model": 1}', 400, "model", id="model-no-string"),
        pytest.param(False, b'{"prompt": "a", "n": 2}', 400, "n", id="two-choices"),
        pytest.param(False, b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens", id="max-tokens-0"),
        pytest.param(False, b'{"prompt": "a", "max_tokens": true}', 400, "max_tokens", id="max-tokens-bool"),
        pytest.param(False, b'{"prompt": "a", "max_tokens": 100}', 400, "prompt", id="beyond-length"),
        pytest.param(False, b'{"prompt": "a", "stream": "yes"}', 400, "stream", id="stream-no-bool"),
        pytest.param(
            False,
            b'{"prompt": "a", "stream": true, "stream_options": 1}',
            400,
            "stream_options",
            id="options",
        ),
        pytest.param(True, b"{}", 400, "messages", id="no-messages"),
        pytest.param(True, b'{"messages": [{"content": "a"}]}', 400, "messages", id="no-role"),
        pytest.param(True, b'{"messages": [{"role": "user", "content": 1}]}', 400, "messages", id="content"),
    ],
)
def test_bad_requests_get_an_openai_error(chat: bool, body: bytes, status: int, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(body, LIMITS, chat=chat)
    error = json.loads(caught.value.body())["error"]
    assert (error["code"], error["param"]) == (status, param)
    assert error["message"]


def test_a_prompt_longer_than_the_model_is_refused_whatever_its_size() -> None:
    with pytest.raises(ApiError, match="maximum context length is 100") as caught:
        parsed(prompt="x" * 2_000_000)
    assert caught.value.status == 400


def test_completions_default_to_16_tokens_and_chats_end_by_themselves() -> None:
    completion, chat = parsed(prompt="a", ignore_eos=True), parsed(chat=True, messages=USER)
    assert (completion.output_tokens, completion.finish_reason) == (16, "length")
    assert 10 <= chat.output_tokens <= 30
    assert chat.finish_reason == "stop"


def test_ignore_eos_gives_exactly_max_tokens() -> None:
    made = parsed(prompt="a", max_tokens=77, ignore_eos=True)
    assert (made.output_tokens, made.finish_reason) == (77, "length")


@pytest.mark.parametrize(
    ("model", "adapter"), [("base", None), ("alias", None), ("tuned", "tuned"), (None, None)]
)
def test_models_and_adapters_are_served_under_their_names(model: str | None, adapter: str | None) -> None:
    made = parsed(prompt="a", model=model) if model else parsed(prompt="a")
    assert (made.model, made.adapter) == (model or "base", adapter)


@pytest.mark.parametrize("value", ["abcdefgh", ["abcdefgh"], [1, 2], [[1, 2]]])
def test_one_prompt_may_come_in_four_shapes(value: object) -> None:
    assert parsed(prompt=value).prompt_tokens == 2


def test_an_image_counts_its_tokens_not_its_bytes() -> None:
    limits = Limits(
        models=("m",), adapters=(), max_model_len=1000, block_size=4, mean_output_tokens=5, seed=0
    )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    content = [{"type": "text", "text": "what?"}, image]
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    assert 576 < parse(body, limits, chat=True).prompt_tokens < 590


def images(number: int) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"a": index} for index in range(number)]}]


def test_images_beyond_the_model_s_length_are_refused_before_any_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(_: bytes) -> None:
        pytest.fail("an image was made")

    monkeypatch.setattr(hashlib, "shake_128", make)
    with pytest.raises(ApiError, match="maximum context length is 100") as caught:
        parsed(chat=True, messages=images(20_000))
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_tokenize_counts_what_cannot_be_served_without_making_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: bytes) -> None:
        pytest.fail("an image was made")

    monkeypatch.setattr(hashlib, "shake_128", make)
    for fields, count in (
        ({"messages": images(20_000)}, 20_000 * 576 + 2),
        ({"prompt": "x" * 404}, 101),
        ({"prompt": [7] * 101}, 101),
    ):
        found = json.loads(tokenized(json.dumps(fields).encode(), LIMITS))
        assert (found["count"], found["tokens"], found["max_model_len"]) == (count, [], 100)


def test_tokenize_lists_the_tokens_of_what_can_be_served() -> None:
    body = json.dumps({"prompt": "abcdefghi", "return_token_strs": True}).encode()
    found = json.loads(tokenized(body, LIMITS))
    assert found["tokens"] == [int.from_bytes(part, "little") for part in (b"abcd", b"efgh", b"i")]
    assert found["token_strs"] == ["abcd", "efgh", "i\0\0\0"]


def events_of(made: Generation, cuts: list[int]) -> list[dict[str, object] | str]:
    writer = SseWriter(made, "id-1", 7)
    out = writer.opening()
    for start, stop in pairwise(cuts):
        out += writer.tokens(start, stop)
    out += writer.ending(Usage(2, made.output_tokens, 1))
    parts = out.decode().removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    texts = [part.removeprefix("data: ") for part in parts]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_says_what_the_plain_answer_says(chat: bool, usage: bool) -> None:
    made = parsed(
        chat=chat,
        prompt="a",
        messages=USER,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": usage},
    )
    *events, done = events_of(made, [0, 1, 5, made.output_tokens])
    plain = json.loads(answer(made, "id-1", 7, Usage(2, made.output_tokens, 1)))
    choices = [c for e in events if isinstance(e, dict) for c in e["choices"]]  # type: ignore[attr-defined]
    text = "".join(c["delta"].get("content", "") if chat else c["text"] for c in choices)
    assert done == "[DONE]"
    assert text == (plain["choices"][0]["message"]["content"] if chat else plain["choices"][0]["text"])
    assert choices[-1]["finish_reason"] == plain["choices"][0]["finish_reason"] == made.finish_reason
    last = events[-1]
    assert isinstance(last, dict)
    assert last.get("usage") == (plain["usage"] if usage else None)
    assert plain["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert len(events) == made.output_tokens + chat + 1 + usage


def test_an_adapter_s_name_must_be_text_that_a_metrics_page_can_hold() -> None:
    with pytest.raises(ApiError, match="lone surrogate"):
        lora_name(b'{"lora_name": "\\ud800", "lora_path": "x"}', load=True)
