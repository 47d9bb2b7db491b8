"""The server's shell on real sockets: time-outs, bounds, drain, TLS, hostile senders."""

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from http2_wire import Wire, goaway_code, message, read_frames
from lean_grpc import (
    CallError,
    Channel,
    Limits,
    ServerCertificate,
    StatusCode,
    client_context,
    replace_certificate,
    server_context,
)
from lean_grpc.aio.tls import CERTIFICATE, KEY, make_self_signed
from lean_grpc.http2 import codes
from lean_grpc.http2.codes import PREFACE, ErrorCode, frame
from lean_service import ECHO, REVERSE

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", ECHO.encode()),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
)
GREETING = PREFACE + frame(codes.SETTINGS, 0, 0)


async def all_that_comes(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        try:
            return await reader.read(-1)
        except ConnectionResetError:
            return b""


async def test_garbage_is_answered_with_goaway_and_closed(served: Any) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert goaway_code(read_frames(await all_that_comes(reader))) == ErrorCode.PROTOCOL_ERROR
    writer.close()


@pytest.mark.parametrize("limits", [Limits(handshake_timeout=0.2)])
@pytest.mark.parametrize("said", [b"", PREFACE[:10], PREFACE])
async def test_a_peer_that_does_not_greet_is_closed(served: Any, said: bytes, limits: Limits) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(said)
    assert goaway_code(read_frames(await all_that_comes(reader))) == ErrorCode.SETTINGS_TIMEOUT
    writer.close()


@pytest.mark.parametrize("limits", [Limits(frame_timeout=0.2)])
async def test_the_rest_of_a_frame_must_come(served: Any, limits: Limits) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(GREETING + frame(codes.SETTINGS, codes.ACK, 0) + b"\0\0")
    assert goaway_code(read_frames(await all_that_comes(reader))) == ErrorCode.PROTOCOL_ERROR
    writer.close()


@pytest.mark.parametrize("limits", [Limits(idle_timeout=0.2)])
async def test_an_idle_connection_is_closed_in_peace(served: Any, limits: Limits) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(GREETING + frame(codes.SETTINGS, codes.ACK, 0))
    assert goaway_code(read_frames(await all_that_comes(reader))) == ErrorCode.NO_ERROR
    writer.close()


@pytest.mark.parametrize("limits", [Limits(keepalive_interval=0.1, keepalive_timeout=0.2)])
async def test_a_silent_peer_gets_a_ping_and_is_then_aborted(served: Any, limits: Limits) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(GREETING + frame(codes.SETTINGS, codes.ACK, 0))
    assert codes.PING in [answer.kind for answer in read_frames(await all_that_comes(reader))]
    writer.close()


@pytest.mark.parametrize("limits", [Limits(first_message_timeout=0.2)])
async def test_a_stream_that_is_never_used_ends(served: Any, limits: Limits, eventually: Any) -> None:
    async with Channel(f"127.0.0.1:{served.port}") as channel:
        async with channel.stream(ECHO) as stream:
            with pytest.raises(CallError) as failed:
                await stream.read()
            assert failed.value.code is StatusCode.DEADLINE_EXCEEDED
    assert served.log == ["opened", "aborted DEADLINE_EXCEEDED"]


@pytest.mark.parametrize("limits", [Limits(max_connections=2)])
async def test_connections_above_the_limit_are_closed_at_once(
    served: Any, limits: Limits, eventually: Any
) -> None:
    pairs = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
    for each_reader, each_writer in pairs:
        each_writer.write(GREETING + Wire().request(fields=REQUEST))
        await each_reader.readexactly(9)
    await eventually(lambda: served.server.streams == 2)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    assert await all_that_comes(reader) == b""
    assert served.server.streams == 2
    for _, each in [*pairs, (reader, writer)]:
        each.close()


@pytest.mark.parametrize("limits", [Limits(max_connections=2)])
async def test_idle_connections_make_room_for_new_ones(served: Any, limits: Limits) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
    for each_reader, each_writer in idle:
        each_writer.write(GREETING + frame(codes.SETTINGS, codes.ACK, 0))
        await each_reader.readexactly(9)
    async with Channel(f"127.0.0.1:{served.port}") as channel:
        assert await channel.unary(REVERSE, b"ab", timeout=10) == b"ba"
        assert b"\0\0\0\0\0\0\0\0" in await all_that_comes(idle[0][0])  # GOAWAY, NO_ERROR: the oldest
        idle[1][1].write(frame(codes.PING, 0, 0, bytes(8)))
        await idle[1][0].readuntil(bytes((8, codes.PING, codes.ACK)))
    for _, each in idle:
        each.close()


@pytest.mark.parametrize("limits", [Limits(unproductive_frames=50)])
async def test_a_flood_ends_its_own_connection_only(served: Any, limits: Limits) -> None:
    async with Channel(f"127.0.0.1:{served.port}") as channel:
        async with channel.stream(ECHO) as stream:
            await stream.send(b"before")
            assert await stream.read() == b"before"
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(GREETING + frame(codes.PING, 0, 0, bytes(8)) * 200)
            assert goaway_code(read_frames(await all_that_comes(reader))) == ErrorCode.ENHANCE_YOUR_CALM
            writer.close()
            await stream.send(b"after")
            assert await stream.read() == b"after"


async def test_a_peer_that_reads_nothing_cannot_grow_our_memory(served: Any, eventually: Any) -> None:
    """The peer asks for echoes of 40 MB over many streams, and never reads."""
    wire = Wire(server=False)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", served.port))
    wide = frame(codes.SETTINGS, 0, 0, codes.SETTING.pack(codes.INITIAL_WINDOW_SIZE, 2**31 - 1))
    wide += frame(codes.WINDOW_UPDATE, 0, 0, codes.UINT32.pack(2**31 - 1 - 65_535))
    await loop.sock_sendall(sock, PREFACE + wide + frame(codes.SETTINGS, codes.ACK, 0))
    try:
        async with asyncio.timeout(10):
            for number in range(40):
                stream_id = 2 * number + 1
                block = wire.encoder.encode(REQUEST)
                data = message(bytes(16_000)) + b""
                sent = frame(codes.HEADERS, codes.END_HEADERS, stream_id, block)
                sent += frame(codes.DATA, 0, stream_id, data) * 60
                await loop.sock_sendall(sock, sent)
    except (TimeoutError, ConnectionError):
        pass
    assert served.server.held_bytes < 40 * (Limits().stream_send_high + Limits().stream_window + 16_005)
    sock.close()
    await eventually(lambda: served.server.connections == 0)


async def test_drain_times_out_on_calls_that_stay(served: Any) -> None:
    async with Channel(f"127.0.0.1:{served.port}") as channel:
        async with channel.stream(ECHO) as stream:
            await stream.send(b"x")
            assert await stream.read() == b"x"
            assert not await served.server.drain(0.05)
            with pytest.raises(CallError) as failed:
                await stream.read()
            assert failed.value.code is StatusCode.UNAVAILABLE
    assert served.log[-1] == "aborted UNAVAILABLE"


async def test_tls_without_h2_is_closed(served: Any) -> None:
    context = ssl.create_default_context(cafile=served.certificate / CERTIFICATE)
    reader, writer = await asyncio.open_connection("localhost", served.tls_port, ssl=context)
    assert await all_that_comes(reader) == b""
    writer.close()


async def test_tls_refuses_what_rfc_9113_forbids(served: Any) -> None:
    context = ssl.create_default_context(cafile=served.certificate / CERTIFICATE)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AES:!AESGCM:!CHACHA20")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("localhost", served.tls_port, ssl=context)


async def test_certificate_is_replaced_for_new_connections(tmp_path: Path, caplog: Any) -> None:
    from lean_grpc import Server

    def write() -> None:
        certificate, key = make_self_signed(("localhost",))
        (tmp_path / CERTIFICATE).write_bytes(certificate)
        (tmp_path / KEY).write_bytes(key)

    async def call() -> bytes:
        tls = client_context(authorities=tmp_path / CERTIFICATE)
        async with Channel(f"localhost:{port}", tls=tls) as channel:
            return await channel.unary(REVERSE, b"ab", timeout=10)

    write()
    certificate = ServerCertificate(tmp_path)
    server = Server()
    server.add_unary(REVERSE, lambda payload, call: payload[::-1])
    port = await server.listen("localhost", tls=certificate.context)
    assert await call() == b"ba"
    assert not certificate.refresh()
    write()
    with pytest.raises(CallError) as failed:
        await call()
    assert "CERTIFICATE_VERIFY_FAILED" in failed.value.message
    assert certificate.refresh()
    assert await call() == b"ba"
    (tmp_path / KEY).write_bytes(b"no key")
    caplog.set_level(logging.WARNING, "lean_grpc.tls")
    assert not certificate.refresh()
    assert "is not used" in caplog.text
    assert await call() == b"ba"
    await server.close()


def test_an_encrypted_key_is_refused_without_asking_for_its_passphrase() -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = make_self_signed(("localhost",))
    locked = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(ssl.SSLError):
        server_context(certificate, locked)


def test_halves_of_two_pairs_change_nothing() -> None:
    first, second = make_self_signed(("localhost",)), make_self_signed(("localhost",))
    context = server_context(*first)
    with pytest.raises(ssl.SSLError):
        replace_certificate(context, first[0], second[1])
    replace_certificate(context, *second)


@pytest.mark.parametrize("turns", range(6))
async def test_a_drain_is_cancelled_also_when_its_last_connection_ends_at_that_moment(
    served: Any, turns: int
) -> None:
    """`asyncio.wait_for` of Python 3.11 drops a cancellation that meets a finished wait."""
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    async with asyncio.timeout(20):
        while not served.server.connections:  # noqa: ASYNC110 - no event tells of an accepted connection
            await asyncio.sleep(0.005)
    drain = asyncio.ensure_future(served.server.drain(1_000))
    await asyncio.sleep(0)
    for link in list(served.server._links):
        served.server.dismiss(link)
    for _ in range(turns):
        await asyncio.sleep(0)
    if drain.cancel():
        with pytest.raises(asyncio.CancelledError):
            await drain
    writer.close()
