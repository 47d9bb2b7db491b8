"""The publisher's sockets: replays leave the loop free, and memory stays bounded."""

import asyncio

import pytest
import zmq
import zmq.asyncio

from model_server_sim import kv_publisher
from model_server_sim.blocks import Change, Cleared, Stored
from model_server_sim.engine import Engine, Request
from model_server_sim.kv_publisher import KvPublisher
from model_server_sim.params import EngineParams
from simulator_process import new_host

LIMIT_S = 60.0
PORT, REPLAY_PORT = 5557, 6557


@pytest.fixture
def host() -> str:
    return new_host()


def publisher_at(host: str) -> tuple[KvPublisher, Engine]:
    engine = Engine(EngineParams(), lambda: 0.5)
    return KvPublisher(engine, host, PORT, REPLAY_PORT, "kv@a@b", 0), engine


def publish(publisher: KvPublisher, engine: Engine, changes: list[Change], times: int) -> None:
    for _ in range(times):
        engine.pool.journal = list(changes)
        publisher.publish()


async def replayed(dealer: zmq.asyncio.Socket) -> list[int]:
    """Return the numbers of the messages of one replay."""
    numbers: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while True:
            _, number, _ = await dealer.recv_multipart()
            if number == b"\xff" * 8:
                return numbers
            numbers.append(int.from_bytes(number, "big"))


async def test_replays_are_whole_and_give_the_loop_turns(host: str) -> None:
    publisher, engine = publisher_at(host)
    publish(publisher, engine, [Cleared()], 6000)
    context = zmq.asyncio.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"tcp://{host}:{REPLAY_PORT}")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(publisher.serve_replays())
        for _ in range(3):
            await dealer.send_multipart((b"", bytes(8)))
        counting = tasks.create_task(count())
        for _ in range(3):
            assert await replayed(dealer) == list(range(6000))
        assert turns >= 3 * 6000 // kv_publisher.SLICE
        serving.cancel()
        counting.cancel()
    context.destroy(linger=0)
    publisher.close()


async def test_what_is_kept_for_replays_is_bounded_in_bytes(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_publisher, "REPLAYED_BYTES", 100_000)
    publisher, engine = publisher_at(host)
    request = Request(
        request_id="a",
        prompt_tokens=1600,
        output_tokens=1,
        block_hashes=tuple(range(2**63, 2**63 + 100)),
        token_ids=(2**32 - 1,) * 1600,
    )
    publish(publisher, engine, [Stored(request, 0, 100)], 50)
    context = zmq.asyncio.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"tcp://{host}:{REPLAY_PORT}")
    serving = asyncio.create_task(publisher.serve_replays())
    await dealer.send_multipart((b"", bytes(8)))
    # A payload has about 8,950 bytes.
    assert await replayed(dealer) == list(range(39, 50))
    serving.cancel()
    context.destroy(linger=0)
    publisher.close()
