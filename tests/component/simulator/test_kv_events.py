"""KV-cache events of a real server, read as a router's subscriber reads them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from inference_client import Ask, InferenceClient
from simulator_process import Simulator, Start

FAST = ("--time-scale", "20", "--kv-events-port", "5557", "--kv-events-replay-port", "6557")
LIMIT_S = 30.0


class Subscriber:
    """A SUB socket, and a DEALER for old messages."""

    def __init__(self, simulator: Simulator, rank: int = 0) -> None:
        self._context = zmq.asyncio.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.connect(f"tcp://{simulator.host}:{5557 + rank}")
        self._sub.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(f"tcp://{simulator.host}:{6557 + rank}")

    async def next(self) -> tuple[str, int, list[Any], int]:
        """Return topic, number, events and rank of the next message."""
        async with asyncio.timeout(LIMIT_S):
            topic, number, payload = await self._sub.recv_multipart()
        _, events, rank = msgspec.msgpack.decode(payload)
        return topic.decode(), int.from_bytes(number, "big"), events, rank

    async def has_one(self, limit_ms: int) -> bool:
        """Return whether a message arrives within the limit."""
        return bool(await self._sub.poll(limit_ms))

    async def again(self, first: int) -> list[tuple[int, list[Any]]]:
        """Return the messages from a number on."""
        await self._dealer.send_multipart((b"", first.to_bytes(8, "big")))
        found: list[tuple[int, list[Any]]] = []
        async with asyncio.timeout(LIMIT_S):
            while True:
                _, number, payload = await self._dealer.recv_multipart()
                if number == b"\xff" * 8:
                    return found
                found.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)[1]))

    async def until_connected(self, client: InferenceClient) -> None:
        """Wait until a message arrives: a subscriber misses what is sent before it is connected."""
        for attempt in range(100):
            assert (await client.send(Ask(prompt=f"{attempt} " * 80, max_tokens=1))).ok
            if await self.has_one(200):
                await self.next()
                return
        pytest.fail("no message arrived")

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
async def subscribe() -> AsyncIterator[Any]:
    made: list[Subscriber] = []

    def make(simulator: Simulator, rank: int = 0) -> Subscriber:
        made.append(Subscriber(simulator, rank))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def tokens_of(simulator: Simulator, text: str) -> list[int]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(simulator.url + "/tokenize", json={"prompt": text}) as response,
    ):
        return list((await response.json())["tokens"])


async def test_new_blocks_are_published_with_their_tokens_and_known_ones_are_not(
    start: Start, subscribe: Any
) -> None:
    simulator = await start(*FAST, "--model", "m", "--lora", "tuned", env={"POD_NAME": "pod-3"})
    subscriber = subscribe(simulator)
    async with InferenceClient(simulator.url) as client:
        await subscriber.until_connected(client)
        text = "A prompt of several blocks. " * 20
        assert (await client.send(Ask(prompt=text, max_tokens=1))).ok
        topic, number, events, rank = await subscriber.next()
        longer = text + "And more of it, for two blocks beyond the first ones, which are known already." * 2
        assert (await client.send(Ask(prompt=longer, max_tokens=1))).ok
        _, following, more, _ = await subscriber.next()
        assert (await client.send(Ask(prompt=text, max_tokens=1, model="tuned"))).ok
        *_, tuned, _ = await subscriber.next()
    tokens = await tokens_of(simulator, text)
    ((kind, hashes, parent, ids, size, lora_id, medium, lora_name),) = events
    assert (topic, kind, parent, size, lora_id, medium, lora_name, rank) == (
        "kv@pod-3@m", "BlockStored", None, 16, None, "GPU", None, 0,
    )  # fmt: skip
    assert ids == tokens[: len(hashes) * 16]
    assert len(hashes) == len(tokens) // 16
    assert following == number + 1
    ((_, added, parent, ids, *_),) = more
    assert parent == hashes[-1]
    assert ids == (await tokens_of(simulator, longer))[len(hashes) * 16 :][: len(added) * 16]
    assert tuned[0][-1] == "tuned"
    assert not set(tuned[0][1]) & set(hashes)


async def test_evicted_blocks_and_a_cleared_cache_are_published(start: Start, subscribe: Any) -> None:
    flags = ("--num-gpu-blocks", "40", "--max-model-len", "640")
    simulator = await start(*FAST, *flags, env={"VLLM_SERVER_DEV_MODE": "1"})
    subscriber = subscribe(simulator)
    async with InferenceClient(simulator.url) as client:
        await subscriber.until_connected(client)
        stored: set[int] = set()
        removed: set[int] = set()
        number = 0
        while not removed & stored:
            number += 1
            assert (await client.send(Ask(prompt=f"{number:4}" * 300, max_tokens=1))).ok
            for event in (await subscriber.next())[2]:
                (stored if event[0] == "BlockStored" else removed).update(event[1])
        async with aiohttp.ClientSession() as session:
            await session.post(simulator.url + "/reset_prefix_cache")
        while (events := (await subscriber.next())[2]) != [["AllBlocksCleared"]]:
            assert events[0][0] in {"BlockStored", "BlockRemoved"}


async def test_old_messages_are_sent_again_from_a_number_on(start: Start, subscribe: Any) -> None:
    simulator = await start(*FAST)
    async with InferenceClient(simulator.url) as client:
        for number in range(4):
            assert (await client.send(Ask(prompt=f"{number:4}" * 100, max_tokens=1))).ok
    old = await subscribe(simulator).again(1)
    assert [number for number, _ in old] == [1, 2, 3]
    assert all(events[0][0] == "BlockStored" for _, events in old)


async def test_each_rank_publishes_on_a_port_of_its_own(start: Start, subscribe: Any) -> None:
    simulator = await start(*FAST, "--data-parallel-size", "2")
    subscriber = subscribe(simulator, 1)
    async with aiohttp.ClientSession(headers={"x-data-parallel-rank": "1"}) as session:
        for number in range(100):
            body = {"prompt": f"{number:4}" * 100, "max_tokens": 1}
            async with session.post(simulator.url + "/v1/completions", json=body) as response:
                assert response.status == 200
            if await subscriber.has_one(200):
                break
    assert (await subscriber.next())[3] == 1
