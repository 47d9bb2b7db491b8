"""Sends KV-cache events over ZMQ as vLLM does, and old ones again on request.

Bounded in bytes: each message, what waits for a slow peer, and what is kept for a replay. A replay gives the
loop a turn after every few messages, so that requests for it do not hold back the engine.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import zmq
import zmq.asyncio

from model_server_sim import kv_events
from model_server_sim.blocks import Change, Stored
from model_server_sim.engine import Engine

#: Messages that can be asked for again: vLLM's `buffer_steps`.
REPLAYED: Final = 10_000
#: Bytes of messages that can be asked for again.
REPLAYED_BYTES: Final = 64 << 20
#: Messages that wait for a slow peer before it misses some; fewer than vLLM's `hwm` of 100,000. ZMQ counts
#: messages, not bytes: with `MESSAGE_BYTES` this is 64 MiB for each peer.
HIGH_WATER_MARK: Final = 1024
#: Longest payload, except that a single block may be longer.
MESSAGE_BYTES: Final = 64 << 10
#: Old messages, and bytes of them, that are sent before the loop's other tasks run.
SLICE: Final = 32
SLICE_BYTES: Final = 1 << 20
#: A longer message from a peer ends its connection: requests have 8 bytes, subscriptions a topic's prefix.
MAX_REQUEST_BYTES: Final = 4096
#: Pauses of `PAUSE_S` while a replay's reader is slow, before the replay is given up.
PAUSES: Final = 500
PAUSE_S: Final = 0.01

#: Longest encodings in msgpack: a token id, a block's name, and an event's other fields, of which the longest
#: is an adapter's name of 256 characters with 4 bytes each.
_TOKEN_BYTES, _NAME_BYTES, _EVENT_BYTES = 5, 9, 1200


def portions(journal: list[Change], block_size: int) -> Iterator[list[Change]]:
    """Yield the changes in order, in lists whose payloads stay within `MESSAGE_BYTES`.

    Runs of blocks that are too long for one message are cut.
    """
    block_bytes = _NAME_BYTES + block_size * _TOKEN_BYTES
    room = MESSAGE_BYTES - _EVENT_BYTES  # the rest is for the message's own fields
    most = max(1, (room - _EVENT_BYTES) // block_bytes)
    portion: list[Change] = []
    size = 0
    for change in journal:
        for piece in _cut(change, most) if isinstance(change, Stored) else (change,):
            # A removal also bears its share of the fields of its event, which has one or more.
            piece_bytes = 4 * _NAME_BYTES
            if isinstance(piece, Stored):
                piece_bytes = _EVENT_BYTES + piece.blocks * block_bytes
            if portion and size + piece_bytes > room:
                yield portion
                portion, size = [], 0
            portion.append(piece)
            size += piece_bytes
    if portion:
        yield portion


def _cut(change: Stored, most: int) -> Iterator[Stored]:
    for start in range(0, change.blocks, most):
        blocks = min(most, change.blocks - start)
        yield change._replace(first=change.first + start, blocks=blocks)


class KvPublisher:
    """The publisher of one engine. Call `publish` after the engine changed; run `serve_replays` as a task.

    Raises zmq.ZMQError when an address cannot be bound. `replay_port` 0: nothing is sent again.
    """

    def __init__(self, engine: Engine, host: str, port: int, replay_port: int, topic: str, rank: int) -> None:
        self._engine = engine
        self._topic = topic.encode()
        self._rank = rank
        self._next = 0
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_bytes = 0
        self._context = zmq.asyncio.Context()
        self._out = zmq.Context(self._context).socket(zmq.PUB)
        self._replays: zmq.asyncio.Socket | None = None
        try:
            _bind(self._out, host, port)
            if replay_port:
                self._replays = self._context.socket(zmq.ROUTER)
                # Without this, messages beyond the mark are dropped unseen, the end of the replay among them.
                self._replays.setsockopt(zmq.ROUTER_MANDATORY, 1)
                _bind(self._replays, host, replay_port)
        except zmq.ZMQError:
            self.close()
            raise
        engine.pool.journal = []

    def publish(self) -> None:
        """Send what happened to the engine's blocks since the last call, if anything did."""
        journal = self._engine.pool.journal
        if not journal:
            return
        self._engine.pool.journal = []
        block_size, now = self._engine.params.block_size, time.time()
        for portion in portions(journal, block_size):
            payload = kv_events.batch(portion, now, self._rank, block_size)
            self._keep(payload)
            self._out.send_multipart((self._topic, kv_events.sequence_number(self._next), payload))
            self._next += 1

    def _keep(self, payload: bytes) -> None:
        sent = self._sent
        sent.append((self._next, payload))
        self._sent_bytes += len(payload)
        while len(sent) > REPLAYED or (self._sent_bytes > REPLAYED_BYTES and len(sent) > 1):
            self._sent_bytes -= len(sent.popleft()[1])

    async def serve_replays(self) -> None:
        """Answer requests for messages from a number on; ends by cancellation only."""
        if self._replays is None:
            await asyncio.Event().wait()
            return
        while True:
            frames = await self._replays.recv_multipart()
            # When the next request is there already, the await above does not give the loop a turn.
            await asyncio.sleep(0)
            if len(frames) == 3 and len(frames[2]) == 8:
                await self._replay(self._replays, frames[0], int.from_bytes(frames[2], "big"))

    async def _replay(self, replays: zmq.asyncio.Socket, client: bytes, first: int) -> None:
        in_slice = slice_bytes = 0
        for number, payload in list(self._sent):
            if number < first:
                continue
            if not await _sent_to(replays, (client, b"", kv_events.sequence_number(number), payload)):
                return
            in_slice += 1
            slice_bytes += len(payload)
            if in_slice >= SLICE or slice_bytes >= SLICE_BYTES:
                in_slice = slice_bytes = 0
                await asyncio.sleep(0)
        await _sent_to(replays, (client, b"", kv_events.END_OF_REPLAY, b""))

    def close(self) -> None:
        """Close the sockets and their context without waiting for subscribers."""
        self._out.close(linger=0)
        self._context.destroy(linger=0)


def _bind(out: "zmq.Socket[bytes] | zmq.asyncio.Socket", host: str, port: int) -> None:
    out.set_hwm(HIGH_WATER_MARK)
    out.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    out.setsockopt(zmq.IPV6, ":" in host)
    out.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")


async def _sent_to(replays: zmq.asyncio.Socket, parts: tuple[bytes, ...]) -> bool:
    """Send one message, after pauses while the peer's queue is full; return False when it is given up."""
    for _ in range(PAUSES):
        try:
            await replays.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            await asyncio.sleep(PAUSE_S)
        except zmq.ZMQError:  # the peer has left
            return False
        else:
            return True
    return False
