"""KV-cache events as vLLM and SGLang publish them: from the bytes of a message to events. Pure.

A payload is msgpack `[time, events, rank?]`. An event is an array that begins with its type, or a map with
the key `type`; of both, later versions have more fields. A hash is an integer or bytes, of which the last
eight count. What cannot be read is counted and left out, so that one odd event does not cost the others.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

#: Bits of a hash that are kept: such integers take 32 bytes in memory, those of 64 bits take 36, of which
#: CPython's allocator makes 48.
HASH_MASK: Final = (1 << 60) - 1
#: Longest payload that is read, in bytes: a step of 64,000 new tokens takes less than a half.
MAX_PAYLOAD: Final = 1 << 20
#: Most events of a payload: each costs up to a microsecond before anything is done with it.
MAX_EVENTS: Final = 16_384
#: Most blocks that the events of a payload name: so many has a step of 64,000 tokens in blocks of one token.
MAX_HASHES: Final = 65_536
#: Longest block, in tokens: those of hybrid models have some thousand.
MAX_BLOCK_TOKENS: Final = 4096
#: Most keys beside its tokens that a block's hash depends on.
MAX_EXTRA_KEYS: Final = 64
#: Bytes of a token id in `Stored.tokens`.
TOKEN_BYTES: Final = 4
#: Longest name of an adapter, a medium or a kind of cache, in characters.
MAX_NAME: Final = 256
#: The medium of an event that names none.
DEFAULT_MEDIUM: Final = "gpu"

_decode: Final = msgspec.msgpack.Decoder().decode


class BadBatchError(Exception):
    """The payload is no batch of events."""


class BadEventError(Exception):
    """One event of a batch cannot be read."""


class Stored(NamedTuple):
    """Blocks that the engine can share from now on."""

    hashes: list[int]
    parent: int | None
    """The engine's hash of the block before the first; None: the first begins a prompt."""
    tokens: bytes
    """Token ids of all blocks, `TOKEN_BYTES` each, little-endian; empty when the event names blocks only."""
    block_size: int
    """Tokens in a block."""
    medium: str
    adapter: str
    """Name of the LoRA adapter; "" for the base model."""
    unnamed_adapter: bool
    """The event has an adapter's number and no name."""
    extra: Sequence[bytes] | None
    """For each block what its hash depends on beside its tokens (salt, images); None: nothing."""
    group: int | None
    """Group of layers of a hybrid model; None: the model has one group."""
    kind: str
    """Kind of attention of the group; "" is unknown."""


class Removed(NamedTuple):
    """Blocks that the engine dropped."""

    hashes: list[int]
    medium: str
    group: int | None


class Cleared(NamedTuple):
    """The engine dropped all blocks."""


Event = Stored | Removed | Cleared


class Batch(NamedTuple):
    """The events of one message, in order."""

    time: float
    """The publisher's, in seconds of the epoch; 0 is unknown."""
    events: list[Event]
    rank: int
    """Data-parallel rank; 0 where the message names none."""
    unknown: int
    """Events of a type that this version does not know."""
    malformed: int


_STORED: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx", "kv_cache_spec_kind",
)  # fmt: skip
_REMOVED: Final = ("block_hashes", "medium", "group_idx")


def decode(payload: bytes) -> Batch:
    """Return the events of a payload. Raises BadBatchError when it is none."""
    if len(payload) > MAX_PAYLOAD:
        raise BadBatchError("the message is too long")
    if len(payload) > MAX_EVENTS:
        _check_count(payload)
    try:
        parts = _decode(payload)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadBatchError("the message is not msgpack") from error
    if not isinstance(parts, list) or len(parts) < 2 or not isinstance(parts[1], list):
        raise BadBatchError("the message is not [time, events, rank]")
    rank = parts[2] if len(parts) > 2 and type(parts[2]) is int and parts[2] >= 0 else 0
    time = parts[0] if isinstance(parts[0], (int, float)) else 0.0
    events: list[Event] = []
    unknown = malformed = hashes = 0
    for raw in parts[1]:
        try:
            event = _event(raw)
        except BadEventError:
            malformed += 1
            continue
        if event is None:
            unknown += 1
            continue
        if not isinstance(event, Cleared):
            hashes += len(event.hashes)
            if hashes > MAX_HASHES:
                malformed += 1
                continue
        events.append(event)
    return Batch(float(time), events, rank, unknown, malformed)


def _check_count(payload: bytes) -> None:
    """Raise BadBatchError when there are too many events; the objects of a million take 300 MB."""
    try:
        start = bytes(memoryview(_head(payload).events)[:5])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBatchError("the message is not [time, events, rank]") from error
    # msgpack: 0xdc is an array of up to 65,535 items, 0xdd one of up to 2^32 - 1.
    size = {0xDC: 3, 0xDD: 5}.get(start[0], 0)
    if size and int.from_bytes(start[1:size], "big") > MAX_EVENTS:
        raise BadBatchError("the message has too many events")


def _event(raw: Any) -> Event | None:
    """Return the event; None for a type that is not known."""
    if isinstance(raw, list):
        tag, values = (raw[0] if raw else None), raw
    elif isinstance(raw, dict):
        tag, values = raw.get("type"), None
    else:
        raise BadEventError
    if tag == "BlockStored":
        fields = _fields(raw, _STORED) if values is None else values[1 : len(_STORED) + 1]
        return _stored(*fields)
    if tag == "BlockRemoved":
        fields = _fields(raw, _REMOVED) if values is None else values[1 : len(_REMOVED) + 1]
        return _removed(*fields)
    if tag == "AllBlocksCleared":
        return Cleared()
    if not isinstance(tag, str):
        raise BadEventError
    return None


def _fields(raw: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    return [raw.get(name) for name in names]


def _stored(
    hashes: Any = None,
    parent: Any = None,
    tokens: Any = None,
    block_size: Any = None,
    lora_id: Any = None,
    medium: Any = None,
    lora_name: Any = None,
    extra: Any = None,
    group: Any = None,
    kind: Any = None,
) -> Stored:
    names = _hashes(hashes)
    if type(block_size) is not int or not 0 < block_size <= MAX_BLOCK_TOKENS:
        raise BadEventError
    if tokens is None:
        tokens = []
    if not isinstance(tokens, list):
        raise BadEventError
    try:
        ids = array("I", tokens).tobytes()
    except (TypeError, OverflowError):
        raise BadEventError from None
    adapter = _name(lora_name)
    return Stored(
        names,
        None if parent is None else _hashes([parent])[0],
        ids,
        block_size,
        _name(medium).lower() or DEFAULT_MEDIUM,
        adapter,
        lora_id is not None and not adapter,
        None if extra is None else _extras(extra, len(names), adapter),
        _group(group),
        _name(kind),
    )


def _removed(hashes: Any = None, medium: Any = None, group: Any = None) -> Removed:
    return Removed(_hashes(hashes), _name(medium).lower() or DEFAULT_MEDIUM, _group(group))


def _hashes(values: Any) -> list[int]:
    if not isinstance(values, list):
        raise BadEventError
    try:
        return [each & HASH_MASK for each in values]
    except TypeError:
        return [_hash(each) for each in values]


def _hash(value: Any) -> int:
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big") & HASH_MASK
    if isinstance(value, int):
        return value & HASH_MASK
    raise BadEventError


def _name(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise BadEventError
    return value


def _group(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 1 << 16):
        return value
    raise BadEventError


def _extras(values: Any, blocks: int, adapter: str) -> Sequence[bytes] | None:
    """Return the extra part of each block; None when no block has one."""
    if not isinstance(values, list) or len(values) > blocks:
        raise BadEventError
    found = [b"" if not each else _extra(each, adapter) for each in values]
    if not any(found):
        return None
    return found + [b""] * (blocks - len(found))


def _extra(value: Any, adapter: str) -> bytes:
    """Return what a block's hash depends on beside its tokens; the adapter is known from its own field."""
    if not isinstance(value, list) or len(value) > MAX_EXTRA_KEYS:
        raise BadEventError
    keys = []
    for each in value:
        # An image's key may stand with its offset in the block.
        key = each[0] if isinstance(each, list) and each else each
        if isinstance(key, (bytes, str, int)) and key != adapter:
            keys.append(extra_key(key))
    return joined_extra(keys)


def extra_key(value: bytes | str | int) -> bytes:
    """Return one extra key as bytes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def joined_extra(keys: Sequence[bytes]) -> bytes:
    """Return the extra keys of one block as one; their order does not matter."""
    return b"".join(b"%d:%s" % (len(key), key) for key in sorted(keys))


def time_of(payload: bytes) -> float:
    """Return the time that a payload begins with, without reading the rest; 0 when it is not plain to see."""
    if len(payload) > 10 and 0x92 <= payload[0] <= 0x9F and payload[1] == 0xCB:
        return float(_decode(payload[1:10]))
    return 0.0


class _Head(msgspec.Struct, array_like=True):
    time: msgspec.Raw
    events: msgspec.Raw
    rank: msgspec.Raw = msgspec.Raw(b"\xc0")


_head: Final = msgspec.msgpack.Decoder(_Head).decode


def rank_of(payload: bytes) -> int:
    """Return the rank of a payload, without reading its events; 0 when it names none."""
    try:
        rank = _decode(_head(payload).rank)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return 0
    return rank if type(rank) is int and rank >= 0 else 0
