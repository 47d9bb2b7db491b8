"""Tokens, block names and words from bytes."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server_sim import prompt


@pytest.mark.parametrize(("length", "tokens"), [(0, 1), (1, 1), (4, 1), (5, 2), (64, 16)])
def test_four_bytes_are_a_token(length: int, tokens: int) -> None:
    assert prompt.count_tokens(b"x" * length) == tokens


def test_token_ids_count_one_each() -> None:
    assert prompt.count_tokens(prompt.encode_ids([1, 2, 4294967295])) == 3


@pytest.mark.parametrize("number", [-1, 2**32])
def test_token_ids_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="4294967295"):
        prompt.encode_ids([number])


@given(st.binary(max_size=300), st.binary(max_size=100), st.binary(max_size=100))
def test_prompts_share_exactly_the_names_of_their_common_full_blocks(
    common: bytes, one: bytes, other: bytes
) -> None:
    first, second = common + one, common + other
    shared = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    names = [prompt.block_hashes(material, 2, "") for material in (first, second)]
    equal = [a == b for a, b in zip(*names, strict=False)]
    assert equal == [i < shared // 8 for i in range(len(equal))]
    assert [len(n) for n in names] == [len(first) // 8, len(second) // 8]


def test_adapters_share_no_blocks() -> None:
    material = b"x" * 64
    assert not set(prompt.block_hashes(material, 4, "a")) & set(prompt.block_hashes(material, 4, "b"))


@given(st.integers(0, 2**64 - 1), st.integers(1, 400))
def test_natural_length_stays_around_its_mean(digest: int, mean: int) -> None:
    assert max(1, mean // 2) <= prompt.natural_length(digest, mean) <= mean // 2 + mean


@given(st.integers(0, 2**64 - 1), st.integers(0, 60), st.integers(0, 60))
def test_words_do_not_depend_on_how_they_are_cut(digest: int, cut: int, length: int) -> None:
    cut = min(cut, length)
    whole = list(prompt.words(digest, 0, length))
    assert [*prompt.words(digest, 0, cut), *prompt.words(digest, cut, length)] == whole
    announced = prompt.content_sha256(digest, length)
    assert announced == hashlib.sha256("".join(whole).encode()).hexdigest()


def test_words_need_no_escape_in_json_and_are_not_all_ascii() -> None:
    text = "".join(prompt.words(1, 0, 29))
    assert json.dumps(text, ensure_ascii=False) == f'"{text}"'
    assert not text.isascii()


def test_seed_and_prompt_decide_the_digest() -> None:
    digests = {prompt.digest_of(m, s) for m in (b"a", b"b") for s in (-1, 0, 1)}
    assert len(digests) == 6
