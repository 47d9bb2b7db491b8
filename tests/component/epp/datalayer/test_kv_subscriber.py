"""The picker's ZMQ sockets against real publishers: the simulated server's, and some on a bound socket."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

import aiohttp
import msgspec
import pytest
import zmq

from endpoint_picker.datalayer import kv_inflow
from endpoint_picker.datalayer.kv_index import KvIndex
from endpoint_picker.datalayer.kv_sources import KvEventsPlan, KvSource, KvSources
from endpoint_picker.datalayer.kv_subscriber import KvSubscriber
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from inference_client import Ask, InferenceClient
from simulator_process import Simulator, new_host, spawn

LIMIT_S = 60.0
FAST = ("--time-scale", "20", "--kv-events-port", "5557", "--kv-events-replay-port", "6557", "--model", "m")
PLAN = KvEventsPlan(replay_port=6557)


class Following:
    """An index that follows servers over real sockets."""

    def __init__(self, plan: KvEventsPlan) -> None:
        loop = asyncio.get_running_loop()
        self.table, self.index = EndpointTable(), KvIndex()
        self.sources = KvSources(self.table, self.index)
        self.sources.use(plan)
        self.subscriber = KvSubscriber(self.sources, self.index, loop, clock=loop.time)

    def follow(self, *hosts: str) -> None:
        self.table.replace([Endpoint(f"p{at}-rank-0", "d", host, 8000) for at, host in enumerate(hosts)])

    @property
    def source(self) -> KvSource:
        (source,) = self.sources
        return source

    def match(self, tokens: bytes) -> list[float]:
        root = self.index.root_of("m")
        assert root is not None
        found: list[float] = self.index.match(
            self.index.keys(root, tokens), self.table.ready_rows, 0.0
        ).tolist()
        return found


@pytest.fixture
async def following() -> AsyncIterator[Callable[[KvEventsPlan], Following]]:
    made: list[Following] = []

    def make(plan: KvEventsPlan = PLAN) -> Following:
        made.append(Following(plan))
        return made[-1]

    yield make
    for each in made:
        each.subscriber.close()


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., object]]:
    running: list[Simulator] = []

    async def run(host: str, *flags: str) -> Simulator:
        simulator = await spawn(*FAST, *flags, host=host)
        running.append(simulator)
        await simulator.until_health(200)
        return simulator

    yield run
    for each in running:
        if each.process.returncode is None:
            each.process.kill()
        await each.process.wait()


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 - the state of a socket has no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(what)


async def ask(simulator: Simulator, text: str) -> bytes:
    """Have the server compute the prompt; return its token ids."""
    async with InferenceClient(simulator.url) as client:
        assert (await client.send(Ask(prompt=text, max_tokens=1, model="m"))).ok
    async with (
        aiohttp.ClientSession() as session,
        session.post(simulator.url + "/tokenize", json={"prompt": text}) as response,
    ):
        ids = (await response.json())["tokens"]
    return b"".join(each.to_bytes(4, "little") for each in ids)


def blocks(tokens: bytes) -> int:
    return len(tokens) // 64


async def test_what_was_computed_before_the_picker_came_is_replayed(start: object, following: object) -> None:
    host = new_host()
    simulator = await start(host)  # type: ignore[operator]
    early = await ask(simulator, "Computed before anyone listened. " * 20)
    pool = following()  # type: ignore[operator]
    pool.follow(host)
    await until(lambda: pool.source.stream.complete, "the replay ends")
    assert pool.match(early) == [blocks(early)]
    late = await ask(simulator, "Computed afterwards. " * 20)
    await until(lambda: pool.match(late) == [blocks(late)], "the event comes")
    assert pool.index.trusted(pool.table.ready_rows, 0.0).all()


async def test_a_server_that_is_started_again_is_known_anew(start: object, following: object) -> None:
    host = new_host()
    first = await start(host)  # type: ignore[operator]
    pool = following()  # type: ignore[operator]
    pool.follow(host)
    old = await ask(first, "The first life of this server. " * 20)
    await until(lambda: pool.match(old) == [blocks(old)], "the event comes")
    first.process.kill()
    await first.process.wait()
    second = await start(host)  # type: ignore[operator]
    new = await ask(second, "The second life of this server. " * 20)
    await until(lambda: pool.match(new) == [blocks(new)], "the new server's event comes")
    await until(lambda: pool.match(old) == [0], "the old server's blocks are dropped")
    assert pool.subscriber.reconnections() == [(f"{host}:8000", 1)]
    assert pool.source.stream.complete


async def test_without_replays_a_picker_that_comes_late_knows_a_part(
    start: object, following: object
) -> None:
    host = new_host()
    simulator = await start(host)  # type: ignore[operator]
    await ask(simulator, "Nobody heard this. " * 20)
    pool = following(KvEventsPlan())  # type: ignore[operator]
    pool.follow(host)

    async def heard() -> bytes:
        for number in range(100):
            tokens = await ask(simulator, f"{number} " * 100)
            await asyncio.sleep(0.1)
            if pool.index.entries:
                return tokens
        pytest.fail("no event came")

    tokens = await heard()
    assert pool.match(tokens) == [blocks(tokens)]
    assert not pool.source.stream.complete
    assert not pool.index.trusted(pool.table.ready_rows, 0.0).any()


async def test_a_server_that_leaves_takes_its_blocks_and_sockets_along(
    start: object, following: object
) -> None:
    host = new_host()
    simulator = await start(host)  # type: ignore[operator]
    await ask(simulator, "Soon forgotten. " * 20)
    pool = following()  # type: ignore[operator]
    pool.follow(host)
    await until(lambda: pool.index.entries > 0, "the replay comes")
    pool.follow()
    await until(lambda: not pool.index.entries, "the blocks are swept")
    assert pool.subscriber.active == 0


async def test_engines_may_connect_to_the_picker(following: object) -> None:
    host = new_host()
    pool = following(KvEventsPlan(discover=False, bind=f"tcp://{host}:5557"))  # type: ignore[operator]
    pool.follow("10.0.0.1", "10.0.0.2")
    context = zmq.Context()
    publishers = [context.socket(zmq.PUB) for _ in range(2)]
    stored = ["BlockStored", [1, 2], None, list(range(32)), 16, None, "GPU", None]
    payload = msgspec.msgpack.encode([1.0, [stored], 0])
    for publisher in publishers:
        publisher.connect(f"tcp://{host}:5557")
    tokens = b"".join(each.to_bytes(4, "little") for each in range(32))

    def publish() -> bool:
        for topic, publisher in zip((b"kv@10.0.0.2:8000@m", b"kv@stranger@m"), publishers, strict=True):
            publisher.send_multipart((topic, bytes(8), payload))
        return pool.sources.strangers > 0 and bool(pool.index.models) and pool.match(tokens) == [0, 2]

    await until(publish, "the message is read")
    context.destroy(linger=0)


async def test_an_address_that_cannot_be_bound_is_counted_and_costs_nothing_else(following: object) -> None:
    pool = following(KvEventsPlan(discover=False, bind="tcp://203.0.113.1:5557"))  # type: ignore[operator]
    assert pool.subscriber.errors["bind"] == 1
    pool.follow("10.0.0.1")


async def test_a_message_of_many_frames_is_left_out_and_the_next_one_is_read(following: object) -> None:
    host = new_host()
    pool = following(KvEventsPlan(discover=False, bind=f"tcp://{host}:5557"))  # type: ignore[operator]
    pool.follow("10.0.0.2")
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.connect(f"tcp://{host}:5557")
    payload = msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, list(range(16)), 16]], 0])
    topic = b"kv@10.0.0.2:8000@m"

    def publish() -> bool:
        publisher.send_multipart([topic, bytes(8), payload] * 10_000)
        publisher.send_multipart([topic, bytes(8), payload])
        return bool(pool.index.entries)

    await until(publish, "the message after it is read")
    assert sum(pool.sources.received.values()) >= 1
    assert pool.index.entries == 1
    assert pool.subscriber.errors == {"bind": 0, "connect": 0, "flood": 0, "replay": 0}
    context.destroy(linger=0)


def never_end(peer: socket.socket) -> None:
    """Speak ZMTP 3.0 as a publisher up to a message whose frames all say that more follow."""
    as_server = b"\0"
    frame = b"\3" + struct.pack(">Q", 60_000) + bytes(60_000)
    ready = b"\5READY\x0bSocket-Type\0\0\0\3PUB"
    peer.settimeout(LIMIT_S)
    with peer, contextlib.suppress(OSError):
        peer.sendall(b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(20, b"\0") + as_server + bytes(31))
        left = 64  # bytes of the other side's greeting
        while left and (got := peer.recv(left)):
            left -= len(got)
        peer.sendall(bytes((4, len(ready))) + ready)
        while True:
            peer.sendall(frame)


async def test_a_publisher_whose_message_does_not_end_is_shut_out(
    following: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_inflow, "MAX_UNREAD", 1 << 20)
    host = new_host()
    pool = following(KvEventsPlan())  # type: ignore[operator]

    def twice(listener: socket.socket) -> None:
        listener.settimeout(LIMIT_S)
        with listener:
            for _ in range(2):
                never_end(listener.accept()[0])

    floods = asyncio.create_task(asyncio.to_thread(twice, socket.create_server((host, 5557))))
    pool.follow(host)
    async with asyncio.timeout(LIMIT_S):
        await floods
    await until(lambda: pool.subscriber.errors["flood"] == 2, "it is shut out, and again when it is back")


async def test_a_stranger_whose_message_does_not_end_is_shut_out_and_others_are_heard(
    following: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_inflow, "MAX_UNREAD", 1 << 20)
    host = new_host()
    pool = following(KvEventsPlan(discover=False, bind=f"tcp://{host}:5557"))  # type: ignore[operator]
    pool.follow("10.0.0.2")
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.connect(f"tcp://{host}:5557")
    stored = ["BlockStored", [1], None, list(range(16)), 16, None, "GPU" * 500, None]
    payload = msgspec.msgpack.encode([1.0, [stored] * 40, 0])
    number = 0

    def publish() -> None:
        nonlocal number
        publisher.send_multipart((b"kv@10.0.0.2:8000@m", number.to_bytes(8, "big"), payload))
        number += 1

    def heard() -> int:
        publish()
        return sum(pool.sources.received.values())

    await until(lambda: heard() > 0, "the publisher is heard")
    stranger = socket.create_connection((host, 5557))
    flood = asyncio.create_task(asyncio.to_thread(never_end, stranger))
    await until(lambda: heard() > 0 and pool.subscriber.errors["flood"] == 1, "the flood is shut out")
    await flood
    # The publisher sends many times the bound, and is not taken for a flood.
    before = heard()
    await until(lambda: heard() > before + 100, "the publisher is heard afterwards")
    assert number * len(payload) > 4 * kv_inflow.MAX_UNREAD
    assert pool.subscriber.errors["flood"] == 1
    context.destroy(linger=0)


async def test_what_is_read_counts_to_the_byte(following: object, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    received = kv_inflow._received

    def seen(own: socket.socket) -> int:
        checked.append(received(own))
        return checked[-1]

    monkeypatch.setattr(kv_inflow, "_received", seen)
    host = new_host()
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.bind(f"tcp://{host}:5557")
    pool = following(KvEventsPlan())  # type: ignore[operator]
    pool.follow(host)

    def connection() -> kv_inflow._Connection | None:
        (link,) = pool.subscriber._links.values()
        found: kv_inflow._Connection | None = link._inflow._last
        return found

    def publish() -> int:
        for size in (1, 200, 240, 250, 255, 256, 300, 70_000):
            publisher.send_multipart((b"kv@h@m", bytes(8), bytes(size)))
        found = connection()
        return 0 if found is None else found.read

    await until(lambda: publish() > 2_000_000, "messages come")
    found = connection()
    assert found is not None
    checked.clear()
    # The handshake, of some hundred bytes, is not counted as read.
    await until(lambda: bool(checked) and 0 <= checked[-1] - found.read < 500, "all is read")
    context.destroy(linger=0)
