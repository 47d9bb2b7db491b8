"""TLS handshakes of the server, on asyncio's loop and on uvloop: failures, bounds, order of eviction."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from lean_grpc import Channel, FailedHandshake, HandshakeFailure, Limits, Server, client_context
from lean_grpc.aio.tls import self_signed_server
from lean_grpc.http2.codes import PREFACE
from lean_service import ECHO, REVERSE, install

Run = Callable[[Coroutine[Any, Any, None]], None]
HELLO_BEGUN = b"\x16\x03\x01\x02"
TRUSTING = client_context(verify=False)

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Served:
    """A server with TLS, and the handshakes that failed."""

    def __init__(self, limits: Limits) -> None:
        self.failed: list[FailedHandshake] = []
        self.server = Server(limits=limits, handshake_failed=self.failed.append)
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def kinds(self) -> list[HandshakeFailure]:
        return [each.kind for each in self.failed]

    def channel(self) -> Channel:
        return Channel(f"127.0.0.1:{self.port}", tls=TRUSTING)

    async def connect(
        self, sent: bytes = b"", context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, without TLS unless a context is given."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self._writers.append(writer)
        writer.write(sent)
        return reader, writer

    async def close(self) -> None:
        """End the server and all connections that were made."""
        await self.server.close()
        for writer in self._writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[Served]:
    served = Served(Limits(**limits))
    install(served.server, [])
    served.port = await served.server.listen(tls=self_signed_server())
    try:
        yield served
    finally:
        await served.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event tells of what a peer has done
            await asyncio.sleep(0.005)


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed the connection."""
    async with asyncio.timeout(20):
        with suppress(ConnectionError):
            assert await reader.read() == b""


@both_loops
@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        pytest.param(PREFACE, HandshakeFailure.CLEARTEXT_HTTP2, id="HTTP/2"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", HandshakeFailure.CLEARTEXT_HTTP1, id="HTTP/1"),
        pytest.param(b"PUT / HTTP/1.1\r\n\r\n", HandshakeFailure.CLEARTEXT_HTTP1, id="three letters"),
        pytest.param(b"\x00\x01\x02\x03\x04", HandshakeFailure.OTHER, id="no protocol"),
        pytest.param(b"\x16\x03\x01\x00\x04bosh", HandshakeFailure.OTHER, id="a record that is no hello"),
    ],
)
def test_a_peer_that_speaks_another_protocol_is_closed_and_reported(
    run: Run, sent: bytes, kind: HandshakeFailure
) -> None:
    async def check() -> None:
        async with serving() as served:
            reader, _ = await served.connect(sent)
            with suppress(ConnectionError):
                async with asyncio.timeout(20):
                    await reader.read()
            await eventually(lambda: served.kinds == [kind])
            assert served.failed[0].peer == "127.0.0.1"

    run(check())


@both_loops
def test_the_first_bytes_may_come_one_by_one(run: Run) -> None:
    async def check() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            for at in range(4):
                writer.write(PREFACE[at : at + 1])
                await asyncio.sleep(0.01)
            await ended(reader)
            assert served.kinds == [HandshakeFailure.CLEARTEXT_HTTP2]

    run(check())


@both_loops
@pytest.mark.parametrize("sent", [b"", b"P", HELLO_BEGUN], ids=["nothing", "a letter", "half a hello"])
def test_a_peer_that_goes_no_further_times_out(run: Run, sent: bytes) -> None:
    async def check() -> None:
        async with serving(handshake_timeout=0.2) as served:
            reader, _ = await served.connect(sent)
            await ended(reader)
            assert served.kinds == [HandshakeFailure.TIMEOUT]

    run(check())


@both_loops
@pytest.mark.parametrize("sent", [b"", b"P", HELLO_BEGUN], ids=["nothing", "a letter", "half a hello"])
def test_a_peer_that_closes_is_reported_as_closed(run: Run, sent: bytes) -> None:
    async def check() -> None:
        async with serving() as served:
            _, writer = await served.connect(sent)
            writer.close()
            await eventually(lambda: len(served.failed) == 1)
            assert served.kinds == [HandshakeFailure.CLOSED]

    run(check())


@both_loops
def test_a_peer_that_does_not_trust_the_certificate_is_reported(run: Run) -> None:
    def connect(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            with pytest.raises(ssl.SSLCertVerificationError):
                client_context().wrap_socket(plain, server_hostname="localhost")

    async def check() -> None:
        async with serving() as served:
            await asyncio.to_thread(connect, served.port)
            await eventually(lambda: served.kinds == [HandshakeFailure.UNTRUSTED])

    run(check())


@both_loops
def test_a_peer_that_does_not_offer_http2_is_reported(run: Run) -> None:
    async def check() -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        async with serving() as served:
            reader, _ = await served.connect(context=context)
            await ended(reader)
            assert served.kinds == [HandshakeFailure.NO_HTTP2]

    run(check())


@both_loops
@pytest.mark.parametrize("sent", [b"", HELLO_BEGUN], ids=["nothing", "half a hello"])
def test_one_handshake_too_many_ends_the_oldest(run: Run, sent: bytes) -> None:
    async def check() -> None:
        async with serving(max_handshakes=2) as served:
            oldest = await served.connect(sent)
            await served.connect()
            await served.connect(sent)
            await ended(oldest[0])
            assert served.kinds == [HandshakeFailure.CROWDED_OUT]

    run(check())


@both_loops
def test_handshakes_count_as_connections_and_end_before_established_ones(run: Run) -> None:
    async def check() -> None:
        async with serving(max_connections=3) as served, served.channel() as idle:
            assert await idle.unary(REVERSE, b"ab", timeout=10) == b"ba"
            begun = [await served.connect(HELLO_BEGUN) for _ in range(3)]
            await ended(begun[0][0])
            assert served.kinds == [HandshakeFailure.CROWDED_OUT]
            assert served.server.connections == 1
            assert await idle.unary(REVERSE, b"ab", timeout=10) == b"ba"

    run(check())


@both_loops
def test_a_flood_of_handshakes_keeps_no_peer_out_that_finishes_one(run: Run) -> None:
    async def check() -> None:
        async with (
            serving(max_connections=20, max_handshakes=8) as served,
            served.channel() as before,
            before.stream(ECHO) as stream,
        ):
            await stream.send(b"before")
            assert await stream.read() == b"before"
            for at in range(40):
                await served.connect(HELLO_BEGUN if at % 2 else b"")
            async with served.channel() as channel:
                assert await channel.unary(REVERSE, b"ab", timeout=10) == b"ba"
            await stream.send(b"after")
            assert await stream.read() == b"after"
            assert served.kinds.count(HandshakeFailure.CROWDED_OUT) >= 40 - 8

    run(check())


@both_loops
def test_closing_ends_handshakes_under_way(run: Run) -> None:
    async def check() -> None:
        async with serving() as served:
            reader, _ = await served.connect(HELLO_BEGUN)
            async with served.channel() as channel:
                assert await channel.unary(REVERSE, b"ab", timeout=10) == b"ba"
            await served.close()
            await ended(reader)
            assert served.failed == []

    run(check())
