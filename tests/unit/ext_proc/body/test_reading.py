"""Reading a body: any chunking gives the same result, a small body the same as a large one."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from body_reading import in_pieces, parse
from ext_proc.body.brackets import MAX_DEPTH
from ext_proc.body.reading import InvalidBodyError, ParsedBody, model_span
from ext_proc.body.scan import MAX_KEYS, Scanner

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

#: JSON that other readers change, or refuse: numbers, escapes, duplicate keys, white space.
ODD = [
    b'{"model":"m","seed":9007199254740993,"prompt":"x"}',
    b'{"model":"m","a":1e400,"b":-0,"c":1.10,"d":1E+5,"prompt":"x"}',
    b'{"model":"a","prompt":"x","model":"b"}',
    b'{"mod\\u0065l":"caf\\u00e9","prompt":"\\u003c\\u003e\\u0026"}',
    b'{"model":"<>&","prompt":"<>&"}',
    b'\xef\xbb\xbf{"model":"m","prompt":"x"}',
    b' \r\n\t{ "model" :\t"m" ,\n"prompt"\r: [ "a" , "b" ] } \n',
    b'{"model":"m","prompt":"\\ud83d"}',
    b'{"model":"m","prompt":"\xff\xfe"}',
    b'{"model":"m","temperature":NaN,"prompt":"x"}',
    b'{"model":"m","x":{"model":"inner","y":["}",{"z":"]\\\\"}]},"prompt":"x"}',
    b'{"model":"m\\\\\\"","prompt":["\\\\","\\"]"]}',
    b'{"prompt":"x","model":null,"model":"m"}',
    b'{"model":"m","prompt":[1,2,3,40000]}',
    b'{"model":"m","":[],"prompt":[[1,2],[3]]}',
]


def said(parsed: ParsedBody) -> tuple[object, ...]:
    return parsed.model, parsed.prompt, parsed.stream, parsed.max_tokens, parsed.state


def outcome(path: str, pieces: list[bytes]) -> tuple[object, ...]:
    try:
        return said(in_pieces(path, pieces))
    except InvalidBodyError as error:
        return ("refused", str(error))


def judged(path: str, body: bytes) -> tuple[object, ...]:
    try:
        return said(parse(path, body))
    except InvalidBodyError as error:
        return ("refused", str(error))


def cut(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(each % (len(body) + 1) for each in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("body", ODD)
def test_odd_bodies_are_read_alike_in_one_go_and_byte_by_byte(body: bytes) -> None:
    whole = said(parse(COMPLETIONS, body))
    assert whole[0] in {"m", "b", "café", "<>&", 'm\\"'}
    assert outcome(COMPLETIONS, [bytes((each,)) for each in body]) == whole


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(['"', "\\", '\\"', "]}", "data:image/png;base64,AAAA"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "tools", "stream", "max_tokens", "cache_salt", "x", 'q"', "\\"]),
    VALUES,
)


@given(
    fields=BODIES,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    cuts=st.lists(st.integers(0, 10_000), max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_any_chunking_is_read_like_the_whole(
    fields: dict[str, Any], ascii_only: bool, indent: int | None, cuts: list[int]
) -> None:
    fields["model"] = "m"
    text = json.dumps(fields, ensure_ascii=ascii_only, indent=indent)
    body = text.encode("utf-8", "surrogatepass")
    whole = outcome(CHAT, [body])
    assert outcome(CHAT, cut(body, cuts)) == whole
    assert judged(CHAT, body) == whole


@given(body=st.binary(max_size=80), cuts=st.lists(st.integers(0, 80), max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_judged_alike_however_they_come(body: bytes, cuts: list[int]) -> None:
    body = b'{"model":"m",' + body
    assert outcome(COMPLETIONS, cut(body, cuts)) == outcome(COMPLETIONS, [body])


LONG: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": 'a quoted \\" and \\u00fc text\n' * 4000}]},
    {"messages": [{"content": [{"url": "A" * 70_000}, {"text": "x" * 70_000}, {"url": "B" * 200_000}]}]},
    {"messages": [{"role": "user", "content": "A" * 3_000_000}]},
    {"messages": [{"role": "user", "content": "word " * 400_000}], "tools": ["A" * 66_000] * 3},
    {"messages": [{"content": "x" * 1_310_650}, {"content": [{"url": "C" * 90_000}]}]},
]


@pytest.mark.parametrize("number", range(len(LONG)))
@given(size=st.integers(1000, 80_000), first=st.integers(0, 70_000))
@settings(max_examples=12, deadline=None)
def test_long_strings_are_laid_out_alike_whatever_the_cuts(number: int, size: int, first: int) -> None:
    body = json.dumps({"model": "m", **LONG[number]}).encode()
    pieces = [body[:first], *(body[at : at + size] for at in range(first, len(body), size))]
    assert outcome(CHAT, pieces) == outcome(CHAT, [body])


def test_the_model_is_found_last_after_20_megabytes() -> None:
    body = b'{"prompt":"' + b'text with \\"quotes\\" ' * 1_000_000 + b'","model":"last"}'
    parsed = in_pieces(COMPLETIONS, [body[at : at + 65_536] for at in range(0, len(body), 65_536)])
    assert parsed.model == "last"
    start, end = parsed.model_span or (0, 0)
    assert body[start:end] == b'"last"'


@pytest.mark.parametrize("body", ODD)
def test_the_models_span_is_that_of_the_value_that_counts(body: bytes) -> None:
    span = model_span([body])
    assert span is not None
    start, end = span
    changed = body[:start] + b'"other"' + body[end:]
    assert parse(COMPLETIONS, changed).model == "other"


def refused(pieces: list[bytes], path: str = COMPLETIONS, **more: Any) -> str:
    with pytest.raises(InvalidBodyError) as caught:
        in_pieces(path, pieces, **more)
    return str(caught.value)


def test_too_many_keys_are_refused() -> None:
    keys = b",".join(b'"%d":0' % number for number in range(MAX_KEYS + 1))
    assert f"more than {MAX_KEYS} keys" in refused([b'{"model":"m",' + keys + b"}"])


def test_ten_million_keys_within_a_value_are_skipped() -> None:
    inner = b'"k":0,' * 1_000_000
    body = b'{"model":"m","x":{' + inner + b'"k":0}}'
    assert in_pieces(COMPLETIONS, [body]).model == "m"


@pytest.mark.parametrize("count", [MAX_DEPTH + 1, 100_000])
def test_deep_arrays_are_refused(count: int) -> None:
    assert "nested too deeply" in refused([b'{"model":"m","x":' + b"[" * count])


@pytest.mark.parametrize(
    "body",
    [b"", b"  ", b"[1]", b'"model"', b'{"model":"m"', b'{"model":"m",}', b'{"model" "m"}', b'{"model":"m"}x',
     b'{"model":tru}', b'{"model":"m","x":01}', b'{"model":"m', b"\xff\xfe{",
     b'{model:"m"}', b"{'model':'m'}", b'{"model":"m","x":}'],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert refused([body]).startswith("the request body is ")


def test_a_scanner_keeps_no_more_than_it_was_asked_for() -> None:
    scanner = Scanner({"prompt": 1000})
    scanner.feed(b'{"prompt":"')
    for _ in range(64):
        scanner.feed(b"word " * 13_000)
    scanner.feed(b'"}')
    scanner.end()
    while not scanner.done:
        scanner.advance()
    assert scanner.error is None
    assert len(scanner.fields["prompt"].raw) == 1000
    assert not scanner.fields["prompt"].whole
