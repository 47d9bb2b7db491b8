"""grpcio's clients, asyncio and threads, against lean_grpc's server: plain, TLS, UNIX socket."""

import asyncio
import logging
from typing import Any

import grpc
import pytest

from lean_grpc import Limits
from lean_grpc.aio.tls import CERTIFICATE
from lean_service import CRASH, ECHO, FAIL, FAIL_MESSAGE, FLOOD, FLOOD_PART, REVERSE, SLOW


@pytest.fixture(params=["tcp", "tls", "unix"])
def target(request: pytest.FixtureRequest, served: Any) -> tuple[str, grpc.ChannelCredentials | None]:
    if request.param == "tls":
        root = (served.certificate / CERTIFICATE).read_bytes()
        return f"localhost:{served.tls_port}", grpc.ssl_channel_credentials(root_certificates=root)
    return (f"127.0.0.1:{served.port}" if request.param == "tcp" else f"unix:{served.socket}"), None


def aio_channel(target: tuple[str, grpc.ChannelCredentials | None]) -> Any:
    address, credentials = target
    options = [("grpc.max_receive_message_length", 8 << 20), ("grpc.use_local_subchannel_pool", 1)]
    if credentials is not None:
        return grpc.aio.secure_channel(address, credentials, options)
    return grpc.aio.insecure_channel(address, options)


def sync_channel(target: tuple[str, grpc.ChannelCredentials | None]) -> Any:
    address, credentials = target
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is not None:
        return grpc.secure_channel(address, credentials, options)
    return grpc.insecure_channel(address, options)


async def test_unary_small_and_large(target: Any) -> None:
    async with aio_channel(target) as channel:
        reverse = channel.unary_unary(REVERSE)
        assert await reverse(b"abc") == b"cba"
        assert await reverse(b"") == b""
        large = bytes(range(256)) * 12_000
        assert await reverse(large) == large[::-1]
        assert await reverse(b"z" * 5_000, compression=grpc.Compression.Gzip) == b"z" * 5_000


async def test_many_calls_at_once(target: Any) -> None:
    async with aio_channel(target) as channel:
        reverse = channel.unary_unary(REVERSE)
        answers = await asyncio.gather(*(reverse(b"%d" % at) for at in range(200)))
        assert answers == [(b"%d" % at)[::-1] for at in range(200)]


async def test_bidirectional_stream_with_metadata(target: Any, served: Any) -> None:
    async with aio_channel(target) as channel:
        call = channel.stream_stream(ECHO)(metadata=(("x-text", "v"), ("x-raw-bin", b"\0\x01\xff")))
        for number in range(5):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert ("x-initial", "yes") in tuple(await call.initial_metadata())
        assert tuple(await call.trailing_metadata()) == (("x-text", "v"), ("x-raw-bin", b"\0\x01\xff"))
    assert served.log == ["opened", "ended"]


async def test_compressed_answers(target: Any) -> None:
    async with aio_channel(target) as channel:
        call = channel.stream_stream(ECHO)(metadata=(("x-compress", "yes"),))
        await call.write(b"a" * 20_000)
        assert await call.read() == b"a" * 20_000
        assert ("grpc-encoding", "gzip") not in tuple(await call.initial_metadata())
        call.cancel()


async def test_statuses(target: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lean_grpc.server")
    async with aio_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(FAIL)(b"")
        assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert failed.value.details() == FAIL_MESSAGE
        assert tuple(failed.value.trailing_metadata()) == (("x-why", "because"), ("x-raw-bin", b"\0\xff"))
        unimplemented = grpc.StatusCode.UNIMPLEMENTED
        for path, code in ((CRASH, grpc.StatusCode.UNKNOWN), ("/test.Service/No", unimplemented)):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(path)(b"")
            assert failed.value.code() is code


async def test_deadline_reaches_the_handler(target: Any, served: Any, eventually: Any) -> None:
    async with aio_channel(target) as channel:
        call = channel.stream_stream(ECHO)(timeout=0.3)
        await call.write(b"x")
        assert await call.read() == b"x"
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: len(served.log) == 2)
        assert served.log[1] in ("aborted DEADLINE_EXCEEDED", "aborted CANCELLED")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(SLOW)(b"", timeout=0.2)
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_cancel_reaches_the_handler(target: Any, served: Any, eventually: Any) -> None:
    async with aio_channel(target) as channel:
        call = channel.stream_stream(ECHO)()
        await call.write(b"x")
        await call.read()
        call.cancel()
        await eventually(lambda: served.log == ["opened", "aborted CANCELLED"])
        await eventually(lambda: served.server.streams == 0)


async def test_a_long_answer_waits_for_its_reader(target: Any) -> None:
    async with aio_channel(target) as channel:
        call = channel.stream_stream(FLOOD)()
        await call.write(b"go")
        assert await call.read() == FLOOD_PART
        received = 1
        while await call.read() is not grpc.aio.EOF:
            received += 1
        assert received == 100
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("limits", [Limits(max_receive_message=1_000)])
async def test_a_message_too_large_is_refused(target: Any, limits: Limits) -> None:
    async with aio_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(REVERSE)(bytes(1_001))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(REVERSE)(bytes(100_000), compression=grpc.Compression.Gzip)
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await channel.unary_unary(REVERSE)(b"ok") == b"ko"


async def test_drain_lets_calls_end_and_takes_no_more(target: Any, served: Any, eventually: Any) -> None:
    async with aio_channel(target) as channel:
        call = channel.stream_stream(ECHO)()
        await call.write(b"before")
        assert await call.read() == b"before"
        drained = asyncio.ensure_future(served.server.drain(20))
        await asyncio.sleep(0)
        await call.write(b"during")
        assert await call.read() == b"during"
        assert not drained.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert await drained
        assert served.server.connections == 0


async def test_threads(target: Any) -> None:
    def talk() -> tuple[bytes, list[bytes], grpc.StatusCode]:
        with sync_channel(target) as channel:
            reversed_ = channel.unary_unary(REVERSE)(bytes(range(256)) * 400)
            echoed = list(channel.stream_stream(ECHO)(iter([b"a", b"b" * 100_000, b"c"])))
            try:
                channel.unary_unary(FAIL)(b"")
            except grpc.RpcError as error:
                return reversed_, echoed, error.code()
            raise AssertionError

    reversed_, echoed, code = await asyncio.get_running_loop().run_in_executor(None, talk)
    assert reversed_ == (bytes(range(256)) * 400)[::-1]
    assert echoed == [b"a", b"b" * 100_000, b"c"]
    assert code is grpc.StatusCode.FAILED_PRECONDITION
