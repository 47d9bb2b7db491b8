"""The slim form of a JSON value: the same from whole bytes and from any cuts."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.body.response.slim import MAX_SCALAR, MAX_SLIM, Each, Keep, Slimmer, Tree, string_at

TREE: Tree = {"a": Keep.SHORT, "in": {"b": Keep.SHORT, "any": Each()}, "list": {"c": Keep.SHORT}}
KEYS = st.sampled_from(["a", "b", "c", "in", "any", "list", "x", 'q"\\', "ü"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def slim(text: bytes, cuts: tuple[int, ...] = (), tree: Tree = TREE) -> bytes:
    slimmer = Slimmer(tree)
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(edges):
        slimmer.feed(text[start:end], 0, end - start)
    return slimmer.closed()


def kept(value: Any, tree: Tree | None) -> Any:
    """Return what the slim form of a value holds, None for nothing."""
    if isinstance(tree, Keep):
        if isinstance(value, list | dict):
            return [0] if value else []
        if isinstance(value, str):
            raw = len(json.dumps(value)) - 2
            return value if raw <= MAX_SCALAR else "+"
        return value if len(json.dumps(value)) <= MAX_SCALAR else None
    assert tree is not None
    if isinstance(value, dict):
        named = {key: Keep.SHORT if isinstance(tree, Each) else tree.get(key) for key in value}
        return {key: kept(value[key], named[key]) for key in value if named[key] is not None}
    return [kept(item, tree) for item in value] if isinstance(value, list) else value


@given(VALUES, st.tuples(*[st.integers(0, 10_000)] * 6), st.sampled_from([None, 1]), st.booleans())
def test_only_the_named_members_stay_whatever_the_cuts(
    value: Any, cuts: tuple[int, ...], indent: int | None, escaped: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    whole = slim(text)
    assert json.loads(whole) == kept(value, TREE)
    assert slim(text, cuts) == whole
    assert slim(text, tuple(range(len(text)))) == whole


@given(st.binary(max_size=200), st.tuples(*[st.integers(0, 200)] * 4))
def test_any_bytes_give_the_same_slim_form_whatever_the_cuts(text: bytes, cuts: tuple[int, ...]) -> None:
    assert slim(text, cuts) == slim(text)


@given(st.lists(st.sampled_from(list('[]{}",:\\ a1')), max_size=60).map("".join), st.integers(0, 60))
def test_broken_json_gives_the_same_slim_form_whatever_the_cuts(text: str, cut: int) -> None:
    raw = ('{"in":' + text).encode()
    assert slim(raw, (cut,)) == slim(raw)


def test_a_key_is_compared_as_it_reads_not_as_it_is_spelt() -> None:
    assert slim(rb'{"\u0061":1,"x":2}') == b'{"a":1}'


@pytest.mark.parametrize(
    ("value", "short"),
    [
        ("x" * MAX_SCALAR, "x" * MAX_SCALAR),
        ("x" * (MAX_SCALAR + 1), "+"),
        (10**MAX_SCALAR, None),
        ([{"deep": [1]}], [0]),
        ({}, []),
        ([], []),
        ("", ""),
        (False, False),
    ],
)
def test_a_leaf_is_cut_short(value: object, short: object) -> None:
    assert json.loads(slim(json.dumps({"a": value}).encode())) == {"a": short}


def test_the_slim_form_is_bounded() -> None:
    many = {"in": {"any": {f"k{number}": "v" * 50 for number in range(10_000)}}}
    assert len(slim(json.dumps(many).encode())) < MAX_SLIM + 1000
    assert len(slim(b'{"list":[' + b'{"c":1},' * 100_000 + b"]}")) < MAX_SLIM + 1000
    assert len(slim(b'{"list":' * 100_000)) < MAX_SLIM


def test_what_stands_after_the_value_is_left() -> None:
    slimmer = Slimmer(TREE)
    assert slimmer.feed(b'{"a":1} rest', 0, 12) == 7
    assert slimmer.done
    assert slimmer.slim == b'{"a":1}'


def test_a_span_is_left_to_the_caller() -> None:
    slimmer = Slimmer({"model": Keep.SPAN})
    text = b'{"id":"x","model": "m","more":1}'
    at = slimmer.feed(text, 0, len(text))
    assert slimmer.at_span
    assert text[at:].startswith(b'"m"')
    assert slimmer.feed(text, at + 3, len(text)) == len(text)
    assert slimmer.done
    assert not slimmer.at_span


def test_a_string_is_read_at_its_place() -> None:
    assert string_at(rb'{"a":"x\"\u00fc"}', 6) == ('x"ü', 15)
    assert string_at(b'"\xff"', 1) == (None, 1)
