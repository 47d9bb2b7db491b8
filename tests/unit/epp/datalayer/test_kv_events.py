"""Reading of KV-cache events: the formats over versions, and bytes that strangers made up."""

import contextlib
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_picker.datalayer import kv_events
from endpoint_picker.datalayer.kv_events import (
    BadBatchError,
    Cleared,
    Removed,
    Stored,
    decode,
    rank_of,
    time_of,
)

encode = msgspec.msgpack.encode
TOKENS = list(range(32))
IDS = array("I", TOKENS).tobytes()


def events(*raw: Any) -> list[Any]:
    batch = decode(encode([12.5, list(raw), 3]))
    assert (batch.time, batch.rank, batch.unknown, batch.malformed) == (12.5, 3, 0, 0)
    return batch.events


def stored(**more: Any) -> Stored:
    fields: dict[str, Any] = {
        "hashes": [1, 2], "parent": None, "tokens": IDS, "block_size": 16, "medium": "gpu", "adapter": "",
        "unnamed_adapter": False, "extra": None, "group": None, "kind": "",
    }  # fmt: skip
    return Stored(**{**fields, **more})


@pytest.mark.parametrize(
    ("raw", "event"),
    [
        pytest.param(["BlockStored", [1, 2], None, TOKENS, 16, None], stored(), id="the first fields"),
        pytest.param(
            ["BlockStored", [1, 2], 7, TOKENS, 16, 3, "CPU", "tuned"],
            stored(parent=7, medium="cpu", adapter="tuned"),
            id="vLLM 0.11: medium, adapter",
        ),
        pytest.param(
            ["BlockStored", [1, 2], 7, TOKENS, 16, 3],
            stored(parent=7, unnamed_adapter=True),
            id="lora_id only",
        ),
        pytest.param(
            [
                "BlockStored",
                [1, 2],
                None,
                TOKENS,
                16,
                None,
                "GPU",
                None,
                [["img"], None],
                1,
                "full_attention",
                0,
                "LOCAL",
            ],
            stored(extra=[b"3:img", b""], group=1, kind="full_attention"),
            id="later fields, unknown ones behind",
        ),
        pytest.param(
            {
                "type": "BlockStored",
                "block_hashes": [1, 2],
                "parent_block_hash": 7,
                "token_ids": TOKENS,
                "block_size": 16,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "later": 1,
            },
            stored(parent=7),
            id="a map",
        ),
        pytest.param(
            ["BlockStored", [bytes(24) + b"\x10" + bytes(6) + b"\x01", 2], None, TOKENS, 16, None],
            stored(hashes=[1, 2]),  # the upper four bits of the last eight bytes are cut
            id="hashes of bytes",
        ),
        pytest.param(
            ["BlockStored", [-1, 2], None, TOKENS, 16, None, None],
            stored(hashes=[kv_events.HASH_MASK, 2]),
            id="SGLang: signed hashes",
        ),
        pytest.param(
            ["BlockStored", [1, 2], None, TOKENS, 16, 1, "GPU", "a", [["a", ["img", 4], "salt"], ["img"]]],
            stored(adapter="a", extra=[b"3:img4:salt", b"3:img"]),
            id="extra keys: the adapter's name is no further key, an image may have an offset",
        ),
        pytest.param(["BlockRemoved", [1, 2]], Removed([1, 2], "gpu", None), id="removed"),
        pytest.param(["BlockRemoved", [1], "CPU", 2], Removed([1], "cpu", 2), id="removed with group"),
        pytest.param(
            {"type": "BlockRemoved", "block_hashes": [1], "medium": None}, Removed([1], "gpu", None), id="map"
        ),
        pytest.param(["AllBlocksCleared"], Cleared(), id="cleared"),
        pytest.param({"type": "AllBlocksCleared"}, Cleared(), id="cleared, a map"),
    ],
)
def test_formats(raw: Any, event: Any) -> None:
    assert events(raw) == [event]


def test_unknown_types_and_odd_events_are_counted_and_the_others_are_read() -> None:
    raw = [
        ["BlockMigrated", [1]],
        {"type": "Later"},
        ["BlockStored", [1], None, [1.5], 1, None],
        ["BlockStored", [1], None, [-1], 1, None],
        ["BlockStored", ["x"], None, [1], 1, None],
        ["BlockStored", [1], None, [1], 0, None],
        ["BlockStored", [1], None, [1], 1, None, "m" * 300],
        [],
        7,
        ["BlockRemoved", [4]],
    ]
    batch = decode(encode([1.0, raw]))
    assert (batch.unknown, batch.malformed, batch.rank) == (2, 7, 0)
    assert batch.events == [Removed([4], "gpu", None)]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode({}),
        encode([1.0]),
        encode([1.0, 5]),
        b"\x91" * 5000,
        bytes(kv_events.MAX_PAYLOAD + 1),
    ],
)
def test_a_message_that_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(BadBatchError):
        decode(payload)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "x"]), st.lists(JSON, max_size=12))
def test_no_event_raises_anything_else(tag: str, fields: list[Any]) -> None:
    batch = decode(encode([1.0, [[tag, *fields]], 0]))
    assert len(batch.events) + batch.unknown + batch.malformed == 1


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    rank_of(payload)
    time_of(payload)
    with contextlib.suppress(BadBatchError):
        decode(payload)


def test_time_and_rank_are_read_without_the_events() -> None:
    payload = encode([12.5, [["AllBlocksCleared"]], 3])
    assert (time_of(payload), rank_of(payload)) == (12.5, 3)
    assert (time_of(encode([1, []])), rank_of(encode([1.0, []]))) == (0.0, 0)


def test_a_message_of_a_million_small_events_is_refused_before_they_are_read() -> None:
    payload = encode([1.0, [None] * 100_000])
    assert len(payload) < kv_events.MAX_PAYLOAD
    with pytest.raises(BadBatchError, match="too many events"):
        decode(payload)
    assert decode(encode([1.0, [["AllBlocksCleared"]] * kv_events.MAX_EVENTS])).malformed == 0


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(["BlockStored", [1], None, [7] * 5000, 5000], id="a long block"),
        pytest.param(
            ["BlockStored", [1], None, [7], 1, None, None, None, [["k"] * 65]], id="many extra keys"
        ),
        pytest.param(["BlockRemoved", [1] * 70_000], id="many blocks"),
    ],
)
def test_events_that_cost_much_more_than_their_bytes_are_left_out(event: list[Any]) -> None:
    batch = decode(encode([1.0, [event, ["BlockRemoved", [2]]], 0]))
    assert batch.malformed >= 1
    assert all(isinstance(each, Removed) and each.hashes == [2] for each in batch.events)


def test_a_rank_of_any_type_is_read() -> None:
    assert [rank_of(encode([1.0, [], each])) for each in (3, "a", -1, None, 1 << 63)] == [3, 0, 0, 0, 1 << 63]
