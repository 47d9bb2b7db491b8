"""Waiting for tokens: never past the budget, and a dead tokenizer costs one budget, not one a request."""

import json
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from body_reading import parse
from endpoint_picker.datalayer import tokenizing
from endpoint_picker.datalayer.kv_index import MAX_BLOCKS
from endpoint_picker.datalayer.prompt_reading import MAX_TOKENS, answered_tokens, prompt_of, tokens_of
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.datalayer.token_answer import AnswerReading
from endpoint_picker.datalayer.tokenizing import Job, TokenCache
from endpoint_picker.decision import Decision, Refusal, Waiting
from endpoint_picker.request import InferenceRequest, Tokens
from endpoint_picker.routing import build_router

CONFIG = """
plugins:
- {type: token-producer, parameters: {budget: 50ms%s}}
- {type: precise-prefix-cache-producer}
- {type: prefix-cache-scorer}
"""


class Picker:
    """A router on a virtual clock, with three servers, whose calls of /tokenize the test answers."""

    def __init__(self, more: str = "") -> None:
        self.now = 100.0
        self.due: float | None = None
        self.router = build_router(
            config_text=CONFIG % more, clock=lambda: self.now, rng=np.random.default_rng(1)
        )
        assert not self.router.config_error
        self.router.wake_at = self._wake_at
        self.router.replace_endpoints([Endpoint(f"p{n}-rank-0", "d", f"10.0.0.{n}", 8000) for n in range(3)])
        self.tokenizing = self.router.pool.tokenizing
        self.answers: list[tuple[float, Decision | Refusal]] = []
        self.requests: list[InferenceRequest] = []

    def _wake_at(self, due: float) -> None:
        self.due = due if self.due is None else min(due, self.due)

    def send(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> bool:
        """Send a request; return whether it waits."""
        request = InferenceRequest(request_id="r", model="m", prompt=b"p" * 400, headers={":path": path})
        request.chunks = (json.dumps({"model": "m", **body}).encode(),)
        request.body_bytes = len(request.body)
        self.requests.append(request)
        answer = self.router.decide(request, None, lambda late: self.answers.append((self.now, late)))
        if not isinstance(answer, Waiting):
            self.answers.append((self.now, answer))
        return isinstance(answer, Waiting)

    def chat(self, *texts: str) -> bool:
        return self.send({"messages": [{"role": "user", "content": text} for text in texts]})

    def until(self, time: float) -> None:
        """Let the clock run, calling the router when it is due."""
        while self.due is not None and self.due <= time:
            self.now, self.due = max(self.now, self.due), None
            again = self.router.advance()
            if again is not None:
                self._wake_at(again)
        self.now = time

    def calls(self) -> list[Job]:
        found = list(self.tokenizing.outbox)
        self.tokenizing.outbox.clear()
        return found

    def reasons(self) -> list[str]:
        return [each.tokens.reason for each in self.requests if each.tokens is not None]

    def answer(self, job: Job, *ids: int) -> None:
        tokens = tokens_of(ids, "server")
        assert tokens is not None
        self.tokenizing.answered(job, tokens, self.now)
        self.until(self.now)


def test_a_request_waits_for_its_tokens_and_an_equal_one_does_not() -> None:
    picker = Picker()
    assert picker.chat("hello")
    (call,) = picker.calls()
    assert call.url in [f"http://10.0.0.{n}:8000/tokenize" for n in range(3)]
    assert json.loads(call.body) == {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    picker.until(100.01)
    picker.answer(call, 1, 2, 3)
    ((at, answer),) = picker.answers
    assert isinstance(answer, Decision)
    assert at < 100.02
    assert not picker.chat("hello")
    assert picker.reasons() == ["server", "cache"]
    assert not picker.calls()


def test_no_request_waits_beyond_its_budget_and_a_dead_tokenizer_costs_one() -> None:
    picker = Picker()
    for n in range(5):
        picker.until(100.0 + n * 0.01)
        assert picker.chat(f"prompt {n}")
    picker.until(100.05)
    # All that waited are over with the first budget: 50, 40, 30, 20 and 10 ms.
    assert [at for at, _ in picker.answers] == [pytest.approx(100.05)] * 5
    assert all(isinstance(answer, Decision) for _, answer in picker.answers)
    for n in range(50):
        picker.until(100.06 + n * 0.1)
        assert not picker.chat(f"later {n}")
    assert set(picker.reasons()) == {"budget", "not-trusted"}
    # While it is dead, it is asked twice a second, by prompts that do not wait.
    assert 5 + 8 <= picker.tokenizing.calls <= 5 + 11
    call = picker.calls()[-1]
    picker.until(call.sent_at + 0.03)
    picker.answer(call, 1)
    assert picker.tokenizing.is_trusted
    assert picker.chat("again")


def test_a_refused_connection_ends_the_wait_at_once_and_another_server_is_asked() -> None:
    picker = Picker()
    assert picker.chat("a")
    (call,) = picker.calls()
    picker.tokenizing.failed(call, picker.now, refused=False)
    picker.until(picker.now)
    assert picker.reasons() == ["failed"]
    asked = set()
    for n in range(4):
        picker.until(101.0 + n)
        assert not picker.chat(f"b{n}")
        asked |= {each.server for each in picker.calls()}
    assert asked == {f"10.0.0.{n}:8000" for n in range(3)} - {call.server}


def test_a_prompt_that_the_server_refuses_says_nothing_about_the_server() -> None:
    picker = Picker()
    assert picker.chat("a")
    picker.tokenizing.failed(picker.calls()[0], picker.now, refused=True)
    picker.until(picker.now)
    assert picker.reasons() == ["refused"]
    assert picker.chat("b")


def test_a_slow_prompt_alone_does_not_cost_the_trust() -> None:
    picker = Picker()
    assert picker.chat("long")
    (slow,) = picker.calls()
    picker.until(100.02)
    assert picker.chat("short")
    picker.answer(picker.calls()[0], 1)
    picker.until(100.05)
    assert picker.reasons() == ["budget", "server"]
    assert picker.tokenizing.is_trusted
    picker.answer(slow, 1, 2)  # late; the next equal prompt has its tokens
    assert not picker.chat("long")


def test_a_longer_turn_of_a_conversation_takes_the_tokens_of_the_one_before() -> None:
    picker = Picker()
    turns = ["x" * 900, "y" * 100]
    assert picker.chat(turns[0])
    picker.answer(picker.calls()[0], *range(100))
    assert not picker.chat(*turns)  # the first turn is more than 80 % of it
    assert picker.requests[-1].tokens is not None
    assert len(picker.requests[-1].tokens.ids) == 4 * (100 - tokenizing.LOOSE_END)
    picker.answer(picker.calls()[0], *range(120))  # it was asked about for the turn after it
    assert not picker.chat(*turns)
    assert picker.reasons() == ["server", "prefix", "cache"]
    # A turn that is half new waits, and has the beginning if no answer comes.
    assert picker.chat(*turns, "z" * 1000)
    picker.until(picker.now + 0.05)
    assert picker.reasons()[-1] == "prefix"


def test_requests_with_the_same_prompt_share_one_call() -> None:
    picker = Picker()
    assert picker.chat("a")
    assert picker.chat("a")
    (call,) = picker.calls()
    picker.answer(call, 1)
    assert picker.reasons() == ["server", "server"]


@pytest.mark.parametrize(
    ("body", "path", "reason"),
    [
        ({"prompt": [1, 2, 3]}, "/v1/completions", "prompt"),
        ({"prompt": [[1, 2, 3]]}, "/v1/completions", "prompt"),
        ({"prompt": ["a", "b"]}, "/v1/completions", "other-api"),
        ({"prompt": [-1]}, "/v1/completions", "other-api"),
        ({"input": "a"}, "/v1/embeddings", "other-api"),
        ({"messages": [{"role": "user", "content": "a"}]}, "/v1/messages", "other-api"),
        ({"messages": []}, "/v1/chat/completions", "other-api"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
            "/v1/chat/completions",
            "media",
        ),
        ({"prompt": "a", "x": "y" * (2 << 20)}, "/v1/completions", "too-long"),
        ({"prompt": [1] * (1 << 20)}, "/v1/completions", "too-long"),
        ({"messages": [0] * 5000}, "/v1/chat/completions", "too-long"),
    ],
)
def test_what_does_not_wait(body: dict[str, Any], path: str, reason: str) -> None:
    picker = Picker()
    assert not picker.send(body, path)
    assert picker.reasons() == [reason]


def laid_out(body: bytes, path: str = "/v1/completions") -> InferenceRequest:
    """Return a request whose prompt material the body's reader laid out."""
    parsed = parse(path, body)
    request = InferenceRequest(
        request_id="r", model="m", prompt=parsed.prompt, headers={":path": path}, body_bytes=len(body)
    )
    request.ids_at = parsed.ids_at
    return request


@pytest.mark.parametrize("count", [1, 5, 20_000, 200_000, 300_000], ids=str)
@pytest.mark.parametrize("form", ["[%b]", "[[%b]]", " [ %b ] "])
@pytest.mark.parametrize("salt", ["", "s\u00e9l"])
def test_a_prompt_of_ids_of_any_length_is_its_own_tokens(count: int, form: str, salt: str) -> None:
    ids = [at * 7 % 150_000 for at in range(count)]
    prompt = form.encode() % b", ".join(b"%d" % each for each in ids)
    given = b'"cache_salt": %b,' % json.dumps(salt).encode() if salt else b""
    tokens = prompt_of(laid_out(b'{"model": "m",%b"prompt": %b}' % (given, prompt)))
    assert isinstance(tokens, Tokens)
    assert (tokens.reason, tokens.salt) == ("prompt", salt)
    expected = array("I", ids).tobytes()
    # Of a longer prompt the beginning is laid out: more tokens than are ever looked up.
    assert expected.startswith(tokens.ids)
    assert len(tokens.ids) >= min(len(expected), 4 * MAX_BLOCKS * 16)


@pytest.mark.parametrize(
    "prompt",
    [
        "[]",
        "[1, [2]]",
        "[[1], [2]]",
        "[[1, [2]]]",
        "[[[1]]]",
        "[[1, 2.5]]",
        '[["]"]]',
        "[1.5]",
        "[-1]",
        '"\\u0007"',
        '[[1], "a"]',
        '["a", [1]]',
    ],
)
def test_what_does_not_consist_of_one_list_of_ids_is_not_taken_for_tokens(prompt: str) -> None:
    assert laid_out(b'{"model": "m", "prompt": %b}' % prompt.encode()).ids_at == -1


def test_a_salt_that_is_no_text_leaves_the_tokens_unknown() -> None:
    assert prompt_of(laid_out(b'{"model": "m", "cache_salt": 5, "prompt": [1, 2]}')) is None


def test_calls_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "MAX_CALLS", 2)
    picker = Picker()
    assert picker.chat("a")
    assert picker.chat("b")
    assert not picker.chat("c")
    assert picker.reasons() == ["busy"]


def test_a_client_that_hangs_up_leaves_nothing_behind() -> None:
    picker = Picker()
    request = InferenceRequest(request_id="r", model="m", headers={":path": "/v1/completions"})
    request.chunks = (b'{"model": "m", "prompt": "text"}',)
    waiting = picker.router.decide(request, None, lambda late: picker.answers.append((picker.now, late)))
    assert isinstance(waiting, Waiting)
    waiting.cancel()
    picker.answer(picker.calls()[0], 1)
    picker.until(101.0)
    assert not picker.answers
    assert not picker.router.waiting
    assert not picker.tokenizing._waits


def test_a_renderer_is_sent_the_body_as_it_is_and_tells_of_images() -> None:
    picker = Picker(", vllm: {url: 'http://render:8000/'}")
    parts = [{"type": "image_url", "image_url": {"url": "http://i/1"}}]
    assert picker.send({"messages": [{"role": "user", "content": parts}], "cache_salt": "s"})
    (call,) = picker.calls()
    assert call.url == "http://render:8000/v1/chat/completions/render"
    assert call.body == picker.requests[0].body
    answer = {
        "token_ids": [1, 2, 3, 4],
        "features": {
            "mm_hashes": {"image": ["h"]},
            "mm_placeholders": {"image": [{"offset": 1, "length": 2}]},
        },
    }
    found = answered_tokens(json.dumps(answer).encode())
    assert found is not None
    picker.tokenizing.answered(call, found, picker.now)
    tokens = picker.requests[0].tokens
    assert tokens is not None
    assert (tokens.media, tokens.salt, len(tokens.ids)) == (((1, 2, "h"),), "s", 16)


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ({"count": 2, "max_model_len": 9, "tokens": [1, 2]}, 2),
        ([{"token_ids": [1, 2, 3]}], 3),
        ({"tokens": []}, 0),
        ({"tokens": [0] * (MAX_TOKENS + 1)}, 0),
    ],
)
def test_answers(answer: object, count: int) -> None:
    found = answered_tokens(json.dumps(answer).encode())
    assert (0 if found is None else len(found.ids) // 4) == count


@pytest.mark.parametrize(
    "answer", [{"tokens": [-1]}, {"tokens": [1 << 32]}, {"tokens": "a"}, {"error": "x"}, [], "a", None]
)
def test_what_is_no_answer_counts_as_a_failure_of_the_tokenizer(answer: object) -> None:
    with pytest.raises(ValueError, match="answer"):
        answered_tokens(json.dumps(answer).encode())


def in_steps(answer: bytes, cuts: Sequence[int] = ()) -> Tokens | None:
    edges = [0, *sorted(cuts), len(answer)]
    reading = AnswerReading([answer[start:end] for start, end in pairwise(edges)])
    while not reading.done:
        reading.advance()
    return reading.tokens


ANSWERS = st.recursive(
    st.none() | st.integers(-1, 1 << 32) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
IDS = st.lists(st.integers(0, (1 << 32) - 1), max_size=6)
FEATURES = st.fixed_dictionaries(
    {
        "mm_hashes": st.dictionaries(st.sampled_from("ab"), st.lists(st.text(max_size=2), max_size=2)),
        "mm_placeholders": st.dictionaries(
            st.sampled_from("ab"),
            st.lists(
                st.fixed_dictionaries({"offset": st.integers(-1, 9), "length": st.integers(-1, 9)}),
                max_size=2,
            ),
        ),
    }
)


@settings(deadline=None, max_examples=150)
@given(
    st.fixed_dictionaries(
        {},
        optional={"tokens": IDS | ANSWERS, "token_ids": IDS, "prompt_token_ids": IDS, "features": FEATURES},
    ),
    st.lists(st.integers(0, 400), max_size=4),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
def test_a_long_answer_is_read_as_a_short_one(
    answer: dict[str, Any], cuts: list[int], listed: bool, indent: int | None
) -> None:
    sent = json.dumps([answer, {"later": 1}] if listed else answer, indent=indent).encode()
    try:
        whole = answered_tokens(sent)
    except ValueError:
        with pytest.raises(ValueError, match="answer"):
            in_steps(sent, cuts)
        return
    found = in_steps(sent, cuts)
    assert (found is None) == (whole is None)
    if found is not None and whole is not None:
        assert (found.ids, found.media, found.reason) == (whole.ids, whole.media, whole.reason)


@pytest.mark.parametrize("count", [0, 100_000, MAX_TOKENS, MAX_TOKENS + 1], ids=str)
def test_answers_of_any_length(count: int) -> None:
    found = in_steps(b'{"count": 1, "tokens": [' + b",".join([b"7"] * count) + b"]}")
    assert (0 if found is None else len(found.ids) // 4) == (count if count <= MAX_TOKENS else 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[",
        b'{"tokens": [1',
        b'{"tokens": [1]',
        b'{"tokens": [1]} x',
        b"[{}",
    ],
)
def test_an_answer_that_is_cut_off_is_none(answer: bytes) -> None:
    with pytest.raises(ValueError, match="answer"):
        in_steps(answer)


def test_the_settings_of_a_chat_are_part_of_what_it_is() -> None:
    digests = set()
    for more in ({}, {"tools": [{"type": "function"}]}, {"chat_template_kwargs": {"a": 1}}):
        request = InferenceRequest(request_id="r", model="m", headers={":path": "/v1/chat/completions"})
        request.chunks = (json.dumps({"messages": [{"role": "user", "content": "a"}], **more}).encode(),)
        prompt = prompt_of(request)
        assert prompt is not None
        assert not isinstance(prompt, Tokens)
        digests.add(prompt.digests()[-1])
        assert json.loads(prompt.tokenize_call()).keys() == {"model", "messages", *more}
    assert len(digests) == 3


def test_the_cache_is_bounded_in_bytes() -> None:
    cache = TokenCache(most_bytes=100)
    for n in range(10):
        cache.put(b"%d" % n, Tokens(bytes(40), "server"))
    assert (len(cache), cache.size) == (2, 80)
    assert cache.get(b"9") is not None
