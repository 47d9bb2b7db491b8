"""KV-cache events in the format that vLLM's publisher sends over ZMQ: what prefix-aware routers subscribe to.

A message has three frames: the topic, a sequence number of 8 bytes big-endian, and msgpack `[time, events,
rank]`. An event is an array that begins with its type. Pure: the time is passed in.
"""

from collections.abc import Iterable

import msgspec

from model_server_sim.blocks import Change, Cleared, Removed, Stored

MEDIUM = "GPU"
#: Ends an answer to a request for old messages.
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)

_encode = msgspec.msgpack.Encoder().encode


def batch(changes: Iterable[Change], now_unix: float, rank: int, block_size: int) -> bytes:
    """Return the payload of one message."""
    return _encode([now_unix, [_event(change, block_size) for change in _joined(changes)], rank])


def sequence_number(number: int) -> bytes:
    """Return a message's number as its frame."""
    return number.to_bytes(8, "big")


def _joined(changes: Iterable[Change]) -> Iterable[Stored | Cleared | list[int]]:
    """Yield the changes, with removals that follow each other as one list of names."""
    removed: list[int] = []
    for change in changes:
        if isinstance(change, Removed):
            removed.append(change.name)
            continue
        if removed:
            yield removed
            removed = []
        yield change
    if removed:
        yield removed


def _event(change: Stored | Cleared | list[int], block_size: int) -> list[object]:
    if isinstance(change, list):
        return ["BlockRemoved", change, MEDIUM]
    if isinstance(change, Cleared):
        return ["AllBlocksCleared"]
    request, first, end = change.request, change.first, change.first + change.blocks
    names = request.block_hashes
    parent = names[first - 1] if first else None
    tokens = request.token_ids[first * block_size : end * block_size]
    # lora_id is of vLLM's own numbering; the name identifies the adapter.
    return ["BlockStored", names[first:end], parent, tokens, block_size, None, MEDIUM, request.adapter]
