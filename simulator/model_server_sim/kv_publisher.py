"""Sends KV-cache events over ZMQ as vLLM does, and old ones again on request."""

import asyncio
import time
from collections import deque

import zmq
import zmq.asyncio

from model_server_sim import kv_events
from model_server_sim.engine import Engine

#: Messages that can be asked for again: vLLM's `buffer_steps`.
REPLAYED = 10_000
#: Messages that wait for a slow subscriber before it misses some: vLLM's `hwm`.
HIGH_WATER_MARK = 100_000


class KvPublisher:
    """The publisher of one engine. Call `publish` after the engine changed; run `serve_replays` as a task.

    Raises zmq.ZMQError when an address cannot be bound. `replay_port` 0: nothing is sent again.
    """

    def __init__(self, engine: Engine, host: str, port: int, replay_port: int, topic: str, rank: int) -> None:
        self._engine = engine
        self._topic = topic.encode()
        self._rank = rank
        self._next = 0
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=REPLAYED)
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        plain = zmq.Context(self._context)
        self._out = plain.socket(zmq.PUB)
        self._out.set_hwm(HIGH_WATER_MARK)
        self._out.setsockopt(zmq.IPV6, ":" in host)
        self._replays: zmq.asyncio.Socket | None = None
        address = f"[{host}]" if ":" in host else host
        self._out.bind(f"tcp://{address}:{port}")
        if replay_port:
            self._replays = self._context.socket(zmq.ROUTER)
            self._replays.setsockopt(zmq.IPV6, ":" in host)
            self._replays.bind(f"tcp://{address}:{replay_port}")
        engine.pool.journal = []

    def publish(self) -> None:
        """Send what happened to the engine's blocks since the last call, if anything did."""
        journal = self._engine.pool.journal
        if not journal:
            return
        self._engine.pool.journal = []
        payload = kv_events.batch(journal, time.time(), self._rank, self._engine.params.block_size)
        self._sent.append((self._next, payload))
        self._out.send_multipart((self._topic, kv_events.sequence_number(self._next), payload))
        self._next += 1

    async def serve_replays(self) -> None:
        """Answer requests for messages from a number on; ends by cancellation only."""
        if self._replays is None:
            await asyncio.Event().wait()
            return
        while True:
            frames = await self._replays.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue  # no such request in the protocol
            client, first = frames[0], int.from_bytes(frames[2], "big")
            for number, payload in list(self._sent):
                if number >= first:
                    parts = (client, b"", kv_events.sequence_number(number), payload)
                    await self._replays.send_multipart(parts)
            await self._replays.send_multipart((client, b"", kv_events.END_OF_REPLAY, b""))

    def close(self) -> None:
        """Close the sockets without waiting for subscribers."""
        self._out.close(linger=0)
        if self._replays is not None:
            self._replays.close(linger=0)
