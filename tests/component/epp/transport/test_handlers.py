"""What a handler and a gRPC client see of each other: the same on lean_grpc and on the reference, grpc.aio.

Where a peer goes away, grpc.aio often says that its input has ended; only lean_grpc tells a lost connection
from a call that was cancelled.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from endpoint_picker.transport import LIMITS, Metadata, Routes, StatusCode, Stream
from grpc_aio import GrpcAioServer
from lean_grpc import Server

# The thread that is usual here would end the whole run where a call waits for ever.
pytestmark = pytest.mark.timeout(60, method="signal")

METHOD = "/test.Service/Method"
LOST = (["CANCELLED"], ["ended"], ["UNAVAILABLE"])


class Echo:
    """Sends back what it receives and keeps what it is told."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.told: list[str] = []
        self.metadata: Metadata = ()
        self.received_count = 0
        self.blocked = False

    def opened(self, metadata: Metadata) -> None:
        self.metadata = metadata

    def received(self, payload: bytes) -> None:
        self.received_count += 1
        if payload == b"fail":
            self.stream.finish(StatusCode.FAILED_PRECONDITION, "not now")
        elif payload == b"raise":
            raise RuntimeError("a fault of the handler")
        elif not self.stream.send(payload):
            self.blocked = True

    def ended(self) -> None:
        self.told.append("ended")
        self.stream.finish()

    def aborted(self, code: StatusCode) -> None:
        self.told.append(code.name)

    def writable(self) -> None:
        self.told.append("writable")


class LeanServer:
    """lean_grpc as the picker runs it, with the reference's interface."""

    def __init__(self, routes: Routes) -> None:
        self._server = Server(limits=LIMITS)
        for path, factory in routes.items():
            self._server.add(path, factory)

    @property
    def open_calls(self) -> int:
        return self._server.streams

    async def start(self, address: str) -> int:
        host, _, port = address.rpartition(":")
        return await self._server.listen(host, int(port))

    async def stop(self, grace_s: float) -> None:
        await self._server.drain(grace_s)


AnyServer = LeanServer | GrpcAioServer


class Peer:
    """A server of `Echo` handlers and a client of it."""

    def __init__(self, channel: grpc.aio.Channel, server: AnyServer, handlers: list[Echo], port: int) -> None:
        self.channel = channel
        self.server = server
        self.handlers = handlers
        self.port = port

    def call(self, method: str = METHOD, **options: Any) -> Any:
        return self.channel.stream_stream(method)(**options)


@asynccontextmanager
async def peer_of(kind: type[AnyServer]) -> AsyncIterator[Peer]:
    handlers: list[Echo] = []

    def factory(stream: Stream) -> Echo:
        handlers.append(Echo(stream))
        return handlers[-1]

    server = kind({METHOD: factory})
    port = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Peer(channel, server, handlers, port)
    await server.stop(0)


@pytest.fixture(params=[LeanServer, GrpcAioServer])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    async with peer_of(request.param) as found:
        yield found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the handler has no event for it
            await asyncio.sleep(0.01)


async def test_messages_come_back_in_order_and_the_call_ends_well(peer: Peer) -> None:
    call = peer.call(metadata=(("x-key", "value"),))
    for number in range(50):
        await call.write(b"%d" % number)
        assert await call.read() == b"%d" % number
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    (handler,) = peer.handlers
    assert ("x-key", "value") in [tuple(pair) for pair in handler.metadata]
    assert handler.told == ["ended"]
    await until(lambda: not peer.server.open_calls)


async def test_a_status_reaches_the_client(peer: Peer) -> None:
    call = peer.call()
    await call.write(b"fail")
    assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert await call.details() == "not now"


async def test_what_is_sent_later_arrives_and_a_later_finish_ends_the_call(peer: Peer) -> None:
    call = peer.call()
    await call.write(b"hello")
    assert await call.read() == b"hello"
    stream = peer.handlers[0].stream
    stream.send(b"pushed", b"twice")
    assert [await call.read(), await call.read()] == [b"pushed", b"twice"]
    stream.send(b"last")
    stream.finish()
    assert await call.read() == b"last"
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await until(lambda: not peer.server.open_calls)
    assert peer.handlers[0].told == []


async def test_a_client_that_cancels_is_told_once(peer: Peer) -> None:
    call = peer.call()
    await call.write(b"hello")
    await call.read()
    call.cancel()
    await until(lambda: bool(peer.handlers[0].told))
    await until(lambda: not peer.server.open_calls)
    assert peer.handlers[0].told in (["CANCELLED"], ["ended"])
    assert not peer.handlers[0].stream.send(b"into the void")


async def test_a_lost_connection_is_told(peer: Peer) -> None:
    channel = grpc.aio.insecure_channel(
        f"127.0.0.1:{peer.port}", options=[("grpc.use_local_subchannel_pool", 1)]
    )
    call: Any = channel.stream_stream(METHOD)()
    await call.write(b"hello")
    await call.read()
    await channel.close()
    await until(lambda: bool(peer.handlers[0].told))
    assert peer.handlers[0].told in LOST


async def test_a_peer_that_does_not_read_is_not_read_from(peer: Peer) -> None:
    piece = b"x" * 100_000
    call = peer.call()
    sent = 0

    async def write() -> None:
        nonlocal sent
        for _ in range(400):
            await call.write(piece)
            sent += 1

    writing = asyncio.create_task(write())
    await until(lambda: bool(peer.handlers) and peer.handlers[0].received_count > 0)
    seen = -1
    while seen != sent:  # until neither side moves
        seen = sent
        await asyncio.sleep(0.2)
    assert sent < 400
    for _ in range(400):
        assert len(await call.read()) == len(piece)
    await writing
    call.cancel()


async def test_send_says_when_there_is_no_room_and_writable_when_there_is(peer: Peer) -> None:
    call = peer.call()
    await call.write(b"hello")
    await call.read()
    handler = peer.handlers[0]
    piece = b"x" * 50_000
    count = 0
    while handler.stream.send(piece):
        count += 1
        assert count * len(piece) <= LIMITS.stream_send_high + LIMITS.output_high + len(piece)
    for _ in range(count + 1):
        await call.read()
    await until(lambda: handler.told == ["writable"])
    call.cancel()


async def test_an_unknown_method_is_unimplemented(peer: Peer) -> None:
    assert await peer.call("/test.Service/Other").code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_fault_of_a_handler_ends_its_call_only(peer: Peer) -> None:
    call = peer.call()
    await call.write(b"raise")
    assert await call.code() is grpc.StatusCode.UNKNOWN
    assert "fault" not in await call.details()
    assert peer.handlers[0].told == ["UNKNOWN"]
    other = peer.call()
    await other.write(b"hello")
    assert await other.read() == b"hello"
    other.cancel()


async def test_a_taken_port_is_an_error(peer: Peer) -> None:
    with pytest.raises(OSError, match=r"cannot listen|in use"):
        await type(peer.server)({METHOD: Echo}).start(f"127.0.0.1:{peer.port}")


async def test_stopping_resets_open_calls(peer: Peer) -> None:
    call = peer.call()
    await call.write(b"hello")
    await call.read()
    await peer.server.stop(0)
    assert await call.code() is not grpc.StatusCode.OK
    await until(lambda: peer.handlers[0].told in LOST)
