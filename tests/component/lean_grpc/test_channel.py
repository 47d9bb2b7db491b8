"""The channel's shell: reconnecting, choosing among addresses, waiting, giving up, closing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lean_grpc import (
    DEFAULT_LIMITS,
    Backoff,
    CallError,
    Channel,
    Limits,
    Server,
    ServerCall,
    StatusCode,
    client_context,
)
from lean_grpc.aio.address import Target
from lean_service import ECHO, REVERSE, SLOW, install

QUICK = Backoff(first=0.02, longest=0.1)


@asynccontextmanager
async def serving(
    port: int = 0, limits: Limits = DEFAULT_LIMITS, log: list[str] | None = None
) -> AsyncIterator[int]:
    server = Server(limits=limits)
    install(server, [] if log is None else log)
    yield await server.listen(port=port)
    await server.close()


async def outcome(call: Awaitable[bytes]) -> StatusCode:
    try:
        await call
    except CallError as error:
        return error.code
    return StatusCode.OK


async def test_reconnects_after_the_server_has_come_back(eventually: Any) -> None:
    async with serving() as port:
        channel = Channel(f"127.0.0.1:{port}", backoff=QUICK)
        assert await channel.unary(REVERSE, b"ab") == b"ba"
    assert await outcome(channel.unary(REVERSE, b"ab", timeout=5)) is StatusCode.UNAVAILABLE
    async with serving(port):
        assert await channel.unary(REVERSE, b"ab", wait_for_ready=True, timeout=20) == b"ba"
        await channel.close()


async def test_calls_to_unreachable_servers_fail_at_once_and_name_them() -> None:
    async with serving() as port:
        pass
    async with Channel([f"127.0.0.1:{port}", "unix:/nowhere/at/all"]) as channel:
        with pytest.raises(CallError) as failed:
            await channel.unary(REVERSE, b"")
    assert failed.value.code is StatusCode.UNAVAILABLE
    assert f"127.0.0.1:{port}" in failed.value.message
    assert "/nowhere/at/all" in failed.value.message


async def test_wait_for_ready_still_has_a_deadline() -> None:
    async with serving() as port:
        pass
    async with Channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(CallError) as failed:
            await channel.unary(REVERSE, b"", wait_for_ready=True, timeout=0.1)
    assert failed.value.code is StatusCode.DEADLINE_EXCEEDED


async def test_calls_go_where_the_fewest_are_open() -> None:
    logs: list[list[str]] = [[], []]
    async with serving(log=logs[0]) as first, serving(log=logs[1]) as second:
        async with Channel([f"127.0.0.1:{first}", f"127.0.0.1:{second}"]) as channel:
            await channel.ready()
            streams = []
            for _ in range(20):
                stream = channel.stream(ECHO)
                await stream.send(b"x")
                await stream.read()
                streams.append(stream)
                await channel.unary(REVERSE, b"spread until both are connected")
            opened = [log.count("opened") for log in logs]
            assert sum(opened) == 20
            assert min(opened) >= 8
            for stream in streams:
                stream.cancel()


async def test_targets_can_be_replaced() -> None:
    async with serving() as first, serving() as second:
        async with Channel(f"127.0.0.1:{first}") as channel:
            stream = channel.stream(ECHO)
            await stream.send(b"old")
            assert await stream.read() == b"old"
            channel.set_targets([f"127.0.0.1:{second}"])
            await stream.send(b"still")
            assert await stream.read() == b"still"
            stream.end()
            assert await stream.read() is None
            assert await channel.unary(REVERSE, b"ab") == b"ba"


async def test_calls_wait_for_a_free_stream() -> None:
    async with serving(limits=Limits(max_concurrent_streams=2)) as port:
        async with Channel(f"127.0.0.1:{port}") as channel:
            answers = await asyncio.gather(*(channel.unary(REVERSE, b"%d" % at) for at in range(50)))
            assert answers == [(b"%d" % at)[::-1] for at in range(50)]
            slow = [asyncio.ensure_future(channel.unary(SLOW, b"")) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(CallError) as failed:
                await channel.unary(REVERSE, b"", timeout=0.2)
            assert failed.value.code is StatusCode.DEADLINE_EXCEEDED
            for call in slow:
                call.cancel()
            assert await channel.unary(REVERSE, b"ab", timeout=10) == b"ba"


async def test_too_many_waiting_calls_are_refused() -> None:
    limits = Limits(max_waiting_calls=3)
    async with serving() as port:
        async with Channel(f"127.0.0.1:{port}", limits=limits) as channel:
            results = await asyncio.gather(
                *(channel.unary(REVERSE, b"ab") for _ in range(5)), return_exceptions=True
            )
    assert results[:3] == [b"ba"] * 3
    assert [error.code for error in results[3:] if isinstance(error, CallError)] == [
        StatusCode.RESOURCE_EXHAUSTED
    ] * 2


async def test_a_drained_server_costs_no_call() -> None:
    server = Server()
    install(server, [])
    port = await server.listen()
    async with serving() as other:
        async with Channel([f"127.0.0.1:{port}", f"127.0.0.1:{other}"], backoff=QUICK) as channel:
            await channel.ready()
            before = [asyncio.ensure_future(channel.unary(REVERSE, b"ab", timeout=20)) for _ in range(50)]
            drained = asyncio.ensure_future(server.drain(10))
            after = [asyncio.ensure_future(channel.unary(REVERSE, b"ab", timeout=20)) for _ in range(50)]
            assert await asyncio.gather(*before, *after) == [b"ba"] * 100
            assert await drained


async def test_close_cancels_what_is_open() -> None:
    async with serving() as port:
        channel = Channel(f"127.0.0.1:{port}")
        waiting = asyncio.ensure_future(channel.unary(SLOW, b""))
        stream = channel.stream(ECHO)
        await stream.send(b"x")
        await stream.read()
        await channel.close()
        with pytest.raises(CallError) as failed:
            await waiting
        assert failed.value.code is StatusCode.CANCELLED
        with pytest.raises(CallError) as failed:
            await channel.unary(REVERSE, b"")
        assert failed.value.code is StatusCode.CANCELLED


async def test_peer_that_speaks_no_http2_is_unavailable() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with Channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(CallError) as failed:
                await channel.unary(REVERSE, b"", timeout=20)
        assert failed.value.code is StatusCode.UNAVAILABLE


async def test_tls_to_a_plain_server_is_unavailable() -> None:
    async with serving() as port:
        async with Channel(f"127.0.0.1:{port}", tls=client_context(verify=False)) as channel:
            with pytest.raises(CallError) as failed:
                await channel.unary(REVERSE, b"", timeout=20)
        assert failed.value.code is StatusCode.UNAVAILABLE


async def test_handler_sees_the_deadline_and_may_pause() -> None:
    seen: list[float | None] = []

    class Pausing:
        """Takes one message at a time, each after a turn of the loop."""

        def __init__(self, call: ServerCall) -> None:
            self._call = call
            self._loop = asyncio.get_running_loop()

        def opened(self, metadata: object) -> None:
            seen.append(self._call.deadline)

        def received(self, payload: bytes) -> None:
            self._call.pause()
            self._call.send(payload)
            self._loop.call_soon(self._call.resume)

        def ended(self) -> None:
            self._call.finish()

        def aborted(self, code: StatusCode) -> None:
            seen.append(None)

        def writable(self) -> None:
            pass

    server = Server()
    server.add(ECHO, Pausing)
    port = await server.listen()
    async with Channel(f"127.0.0.1:{port}") as channel:
        async with channel.stream(ECHO, timeout=30) as stream:
            sent = [bytes((at,)) * 9_000 for at in range(40)]

            async def send() -> None:
                for payload in sent:
                    await stream.send(payload)
                stream.end()

            sending = asyncio.ensure_future(send())
            assert [payload async for payload in stream] == sent
            await sending
    assert len(seen) == 1
    assert seen[0] is not None
    await server.close()


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:x", "host:0", "host:70000", "unix:"])
def test_targets_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Target.parse(text)


def test_back_off_grows_to_its_longest() -> None:
    backoff = Backoff(first=1, factor=2, longest=5, jitter=0)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 4, 10_000)] == [1, 2, 4, 5, 5]


async def test_an_idle_connection_is_made_anew_when_wanted(eventually: Any) -> None:
    server = Server()
    install(server, [])
    port = await server.listen()
    async with Channel(f"127.0.0.1:{port}", limits=Limits(idle_timeout=0.1)) as channel:
        for _ in range(2):
            assert await channel.unary(REVERSE, b"ab", timeout=10) == b"ba"
            await eventually(lambda: server.connections == 0)
    await server.close()


async def test_calls_that_wait_go_to_new_targets() -> None:
    async with serving() as port:
        pass
    async with serving() as other:
        async with Channel(f"127.0.0.1:{port}", backoff=Backoff(first=60.0)) as channel:
            call = asyncio.ensure_future(channel.unary(REVERSE, b"ab", wait_for_ready=True))
            ready = asyncio.ensure_future(channel.ready())
            await asyncio.sleep(0)
            channel.set_targets([f"127.0.0.1:{other}"])
            async with asyncio.timeout(20):
                assert await call == b"ba"
            async with asyncio.timeout(20):
                await ready


@pytest.mark.parametrize("target", ["a..b:80", ".a:80", "a" * 300 + ":80"])
async def test_a_name_that_cannot_be_one_is_unavailable(target: str) -> None:
    async with Channel(target, tls=client_context()) as channel:
        for _ in range(2):
            async with asyncio.timeout(20):
                assert await outcome(channel.unary(REVERSE, b"")) is StatusCode.UNAVAILABLE


async def test_calls_that_were_given_up_wait_no_more() -> None:
    async with serving() as port:
        pass
    limits = Limits(max_waiting_calls=3)
    async with Channel(f"127.0.0.1:{port}", limits=limits, backoff=QUICK) as channel:
        for _ in range(10):
            call = asyncio.ensure_future(channel.unary(REVERSE, b"ab", wait_for_ready=True))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
        async with serving(port):
            assert await channel.unary(REVERSE, b"ab", wait_for_ready=True, timeout=20) == b"ba"


async def test_a_timeout_may_be_infinite() -> None:
    async with serving() as port:
        async with Channel(f"127.0.0.1:{port}") as channel:
            for timeout in (float("inf"), 1e30):
                answer = channel.unary(REVERSE, b"ab", timeout=timeout)
                async with asyncio.timeout(20):
                    assert await answer == b"ba"


async def test_closing_a_channel_ends_ready() -> None:
    async with serving() as port:
        pass
    channel = Channel(f"127.0.0.1:{port}")
    waiting = asyncio.ensure_future(channel.ready())
    await asyncio.sleep(0)
    await channel.close()
    for ready in (waiting, channel.ready()):
        with pytest.raises(CallError) as failed:
            async with asyncio.timeout(20):
                await ready
        assert failed.value.code is StatusCode.CANCELLED


async def test_targets_of_a_closed_channel_are_not_kept_up() -> None:
    channel = Channel("127.0.0.1:1")
    await channel.close()
    before = asyncio.all_tasks()
    channel.set_targets(["127.0.0.1:2"])
    assert asyncio.all_tasks() == before
