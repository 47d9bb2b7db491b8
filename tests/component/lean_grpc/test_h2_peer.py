"""The `h2` package as the peer, frame by frame: a client of our server, a server of our channel."""

import asyncio
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from http2_wire import message
from lean_grpc import CallError, Channel, StatusCode
from lean_service import ECHO, FLOOD, FLOOD_PART, REVERSE


def request(path: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]


class H2Client:
    """An h2 connection on a socket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool = True
    ) -> None:
        self.reader, self.writer = reader, writer
        config = h2.config.H2Configuration(client_side=client, header_encoding="utf-8")
        self.core = h2.connection.H2Connection(config)
        self.core.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.core.data_to_send())

    async def until(self, kind: type[Any], *, grant: bool = True) -> Any:
        """Read on until an event of the kind comes; data is acknowledged if `grant`."""
        async with asyncio.timeout(20):
            while True:
                data = await self.reader.read(65_536)
                assert data, f"closed before {kind.__name__}"
                found = None
                for event in self.core.receive_data(data):
                    if isinstance(event, h2.events.DataReceived) and grant:
                        self.core.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    found = event if isinstance(event, kind) and found is None else found
                self.flush()
                if found is not None:
                    return found

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
async def client(served: Any) -> Any:
    made = H2Client(*await asyncio.open_connection("127.0.0.1", served.port))
    yield made
    await made.close()


async def test_a_call_frame_by_frame(client: H2Client) -> None:
    client.core.send_headers(1, request(REVERSE))
    client.core.send_data(1, message(b"abc"), end_stream=True, pad_length=7)
    client.flush()
    head = await client.until(h2.events.ResponseReceived)
    assert dict(head.headers)[":status"] == "200"
    trailers = await client.until(h2.events.TrailersReceived) if not client.core.streams[1].closed else None
    assert trailers is None or dict(trailers.headers)["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(":method", "GET")], "405"),
        ([("content-type", "text/plain")], "415"),
    ],
)
async def test_what_is_no_grpc_gets_an_http_status(client: H2Client, fields: Any, status: str) -> None:
    headers = {**dict(request(REVERSE)), **dict(fields)}
    client.core.send_headers(1, list(headers.items()), end_stream=True)
    client.flush()
    head = await client.until(h2.events.ResponseReceived)
    assert dict(head.headers)[":status"] == status


@pytest.mark.parametrize("path", ["/nothing", "/test.Service/No"])
async def test_unknown_methods_end_with_trailers_only(client: H2Client, path: str) -> None:
    client.core.send_headers(1, request(path), end_stream=True)
    client.flush()
    head = await client.until(h2.events.ResponseReceived)
    assert dict(head.headers)["grpc-status"] == str(int(StatusCode.UNIMPLEMENTED))
    assert head.stream_ended is not None


async def test_a_reader_that_stops_stops_the_handler(client: H2Client, served: Any, eventually: Any) -> None:
    client.core.send_headers(1, request(FLOOD))
    client.core.send_data(1, message(b"go"))
    client.flush()
    await client.until(h2.events.DataReceived, grant=False)
    await eventually(lambda: len(served.log) >= 2)
    sent = len(served.log)
    assert sent * len(FLOOD_PART) < 400_000
    for _ in range(3):
        client.core.ping(b"12345678")
        client.flush()
        await client.until(h2.events.PingAckReceived, grant=False)
    assert len(served.log) == sent
    client.core.increment_flow_control_window(200_000)
    client.core.increment_flow_control_window(200_000, 1)
    client.flush()
    await eventually(lambda: len(served.log) > sent)
    client.core.reset_stream(1)
    client.flush()
    await eventually(lambda: served.log[-1].startswith("aborted"))


async def test_settings_change_in_the_midst_of_an_answer(client: H2Client) -> None:
    client.core.send_headers(1, request(ECHO))
    client.flush()
    await client.until(h2.events.SettingsAcknowledged)
    for size, table in ((10, 0), (100_000, 4_096), (5, 100), (70_000, 0)):
        client.core.update_settings(
            {
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: size,
                h2.settings.SettingCodes.HEADER_TABLE_SIZE: table,
            }
        )
        client.core.send_data(1, message(b"x" * 3_000))
        client.flush()
        await client.until(h2.events.SettingsAcknowledged)
    client.core.increment_flow_control_window(50_000, 1)
    client.core.end_stream(1)
    client.flush()
    trailers = await client.until(h2.events.TrailersReceived)
    assert dict(trailers.headers)["grpc-status"] == "0"


async def answer_as_h2_server(port_ready: asyncio.Future[int], behave: Any) -> None:
    done = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = H2Client(reader, writer, client=False)
        try:
            await behave(peer)
        finally:
            await peer.close()
            done.set()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    port_ready.set_result(listener.sockets[0].getsockname()[1])
    async with listener:
        await done.wait()


async def call_h2_server(behave: Any, timeout: float = 10) -> bytes:  # noqa: ASYNC109
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.ensure_future(answer_as_h2_server(ready, behave))
    try:
        async with Channel(f"127.0.0.1:{await ready}") as channel:
            return await channel.unary(REVERSE, b"abc", timeout=timeout)
    finally:
        await server


OK = [(":status", "200"), ("content-type", "application/grpc+proto")]


async def test_channel_takes_an_answer_in_pieces_after_informational_heads() -> None:
    async def behave(peer: H2Client) -> None:
        request_ = await peer.until(h2.events.RequestReceived)
        stream_id = request_.stream_id
        peer.core.send_headers(stream_id, [(":status", "103")])
        peer.core.send_headers(stream_id, OK)
        for byte in message(b"answer"):
            peer.core.send_data(stream_id, bytes((byte,)), pad_length=2)
            peer.flush()
        peer.core.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
        peer.flush()
        await peer.until(h2.events.ConnectionTerminated)

    assert await call_h2_server(behave) == b"answer"


ANSWERS = {
    "http error": ([[(":status", "503")]], StatusCode.UNAVAILABLE),
    "not grpc": ([[(":status", "200"), ("content-type", "text/html")]], StatusCode.UNKNOWN),
    "trailers only": ([[*OK, ("grpc-status", "5"), ("grpc-message", "no%20way")]], StatusCode.NOT_FOUND),
    "no status": ([OK, [("x-a", "1")]], StatusCode.UNKNOWN),
    "bad status": ([OK, [("grpc-status", "x")]], StatusCode.UNKNOWN),
    "ok without message": ([OK, [("grpc-status", "0")]], StatusCode.INTERNAL),
}


@pytest.mark.parametrize(("heads", "code"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_channel_understands_every_way_to_fail(heads: Any, code: StatusCode) -> None:
    async def behave(peer: H2Client) -> None:
        request_ = await peer.until(h2.events.RequestReceived)
        for number, head in enumerate(heads):
            peer.core.send_headers(request_.stream_id, head, end_stream=number == len(heads) - 1)
        peer.flush()
        await peer.until(h2.events.ConnectionTerminated)

    with pytest.raises(CallError) as failed:
        await call_h2_server(behave)
    assert failed.value.code is code


async def test_channel_sends_a_refused_call_again() -> None:
    seen = []

    async def behave(peer: H2Client) -> None:
        first = await peer.until(h2.events.RequestReceived)
        seen.append(first.stream_id)
        peer.core.reset_stream(first.stream_id, 0x7)
        peer.flush()
        second = await peer.until(h2.events.RequestReceived)
        seen.append(second.stream_id)
        peer.core.send_headers(second.stream_id, OK)
        peer.core.send_data(second.stream_id, message(b"again"))
        peer.core.send_headers(second.stream_id, [("grpc-status", "0")], end_stream=True)
        peer.flush()
        await peer.until(h2.events.ConnectionTerminated)

    assert await call_h2_server(behave) == b"again"
    assert seen == [1, 3]


async def test_channel_gives_up_with_the_connection() -> None:
    async def behave(peer: H2Client) -> None:
        await peer.until(h2.events.RequestReceived)

    with pytest.raises(CallError) as failed:
        await call_h2_server(behave)
    assert failed.value.code is StatusCode.UNAVAILABLE
