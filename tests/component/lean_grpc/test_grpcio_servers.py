"""lean_grpc's channel against grpcio's servers, asyncio and threads, and against lean_grpc's own."""

import asyncio
from collections.abc import AsyncIterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from lean_grpc import CallError, Channel, StatusCode, client_context
from lean_grpc.aio.tls import CERTIFICATE, make_self_signed
from lean_service import (
    ECHO,
    FAIL,
    FAIL_MESSAGE,
    FLOOD,
    FLOOD_PART,
    REVERSE,
    SLOW,
    aio_handlers,
    sync_handlers,
)

# With SO_REUSEPORT, grpcio would share its port with any process that binds the same one.
ALONE = [("grpc.so_reuseport", 0)]
KINDS = ["lean", "lean-tls", "lean-unix", "aio", "aio-tls", "threads"]


@pytest.fixture(params=KINDS)
async def channel(request: pytest.FixtureRequest, served: Any, tmp_path: Any) -> AsyncIterator[Channel]:
    kind = request.param
    stop: futures.Future[None] = futures.Future()
    closers: list[Any] = []
    tls = None
    if kind == "lean":
        target = f"127.0.0.1:{served.port}"
    elif kind == "lean-unix":
        target = f"unix:{served.socket}"
    elif kind == "lean-tls":
        target = f"localhost:{served.tls_port}"
        tls = client_context(authorities=served.certificate / CERTIFICATE)
    elif kind == "threads":
        threads = grpc.server(futures.ThreadPoolExecutor(4), options=ALONE)
        threads.add_generic_rpc_handlers((sync_handlers(stop),))
        target = f"127.0.0.1:{threads.add_insecure_port('127.0.0.1:0')}"
        threads.start()
        closers.append(lambda: asyncio.to_thread(threads.stop(None).wait))
    else:
        server = grpc.aio.server(options=ALONE)
        server.add_generic_rpc_handlers((aio_handlers(),))
        if kind == "aio-tls":
            certificate, key = make_self_signed(("localhost",))
            credentials = grpc.ssl_server_credentials([(key, certificate)])
            port = server.add_secure_port("127.0.0.1:0", credentials)
            tls = client_context(verify=False)
        else:
            port = server.add_insecure_port("127.0.0.1:0")
        target = f"127.0.0.1:{port}"
        await server.start()
        closers.append(lambda: server.stop(None))
    async with Channel(target, tls=tls) as made:
        yield made
    stop.set_result(None)
    for closer in closers:
        await closer()


async def test_unary_small_and_large(channel: Channel) -> None:
    assert await channel.unary(REVERSE, b"abc") == b"cba"
    assert await channel.unary(REVERSE, b"") == b""
    large = bytes(range(256)) * 12_000
    assert await channel.unary(REVERSE, large, timeout=60) == large[::-1]
    assert await channel.unary(REVERSE, b"z" * 5_000, compress=True) == b"z" * 5_000


async def test_many_calls_at_once(channel: Channel) -> None:
    answers = await asyncio.gather(*(channel.unary(REVERSE, b"%d" % at) for at in range(200)))
    assert answers == [(b"%d" % at)[::-1] for at in range(200)]


async def test_bidirectional_stream(channel: Channel) -> None:
    async with channel.stream(ECHO, metadata=[("x-text", "v"), ("x-raw-bin", b"\0\x01\xff")]) as stream:
        for number in range(5):
            await stream.send(b"%d" % number)
            assert await stream.read() == b"%d" % number
        await stream.send(bytes(300_000))
        assert await stream.read() == bytes(300_000)
        stream.end()
        assert [payload async for payload in stream] == []
        assert stream.initial_metadata is not None
        assert ("x-initial", "yes") in stream.initial_metadata
        assert stream.status is not None
        assert stream.status.code is StatusCode.OK


async def test_a_long_answer_is_read_at_the_readers_pace(channel: Channel) -> None:
    async with channel.stream(FLOOD) as stream:
        await stream.send(b"go")
        parts = [payload async for payload in stream]
    assert parts == [FLOOD_PART] * 100


async def test_statuses(channel: Channel) -> None:
    with pytest.raises(CallError) as failed:
        await channel.unary(FAIL, b"")
    assert failed.value.code is StatusCode.FAILED_PRECONDITION
    assert failed.value.message == FAIL_MESSAGE
    assert set(failed.value.trailers) >= {("x-why", "because"), ("x-raw-bin", b"\0\xff")}
    with pytest.raises(CallError) as failed:
        await channel.unary("/test.Service/No", b"")
    assert failed.value.code is StatusCode.UNIMPLEMENTED


async def test_deadline_and_cancellation_leave_the_connection_well(channel: Channel) -> None:
    with pytest.raises(CallError) as failed:
        await channel.unary(SLOW, b"", timeout=0.1)
    assert failed.value.code is StatusCode.DEADLINE_EXCEEDED
    waiting = asyncio.ensure_future(channel.unary(SLOW, b""))
    async with channel.stream(ECHO) as stream:
        await stream.send(b"x")
        assert await stream.read() == b"x"
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await channel.unary(REVERSE, b"ab") == b"ba"
