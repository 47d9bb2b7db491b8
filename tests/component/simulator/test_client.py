"""The verifying client: wrong answers and failed transfers become results that say what is wrong."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from inference_client import Ask, InferenceClient, LoadRun
from simulator_process import Start, new_host

PLAIN = b'{"choices": [{"index": 0, "text": "right"}]}'
EVENT = b'data: {"choices": [{"index": 0, "text": "right"}]}\n\n'


@pytest.fixture
async def serve_canned() -> AsyncIterator[Callable[..., object]]:
    """Serve one canned answer: `await serve_canned(body, headers, status)` returns the base URL."""
    runners: list[web.AppRunner] = []

    async def serve(body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> str:
        async def handle(request: web.Request) -> web.Response:
            await request.read()
            return web.Response(body=body, headers=headers, status=status)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        host = new_host()
        await web.TCPSite(runners[-1], host, 8000).start()
        return f"http://{host}:8000"

    yield serve
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "headers", "status", "stream", "words"),
    [
        pytest.param(PLAIN, {"x-sim-content-sha256": "0"}, 200, False, "checksum", id="text"),
        pytest.param(PLAIN, {"x-sim-request-sha256": "0"}, 200, False, "another body", id="request"),
        pytest.param(PLAIN, {}, 503, False, "status 503", id="status"),
        pytest.param(b"hello", {}, 200, False, "unreadable", id="no-json"),
        pytest.param(EVENT, {}, 200, True, "without [DONE]", id="cut-stream"),
        pytest.param(b'data: {"error": "x"}\n\n', {}, 200, True, "error in the stream", id="stream-error"),
    ],
)
async def test_a_wrong_answer_is_reported(
    serve_canned: Callable[..., AsyncIterator[str]],
    body: bytes,
    headers: dict[str, str],
    status: int,
    stream: bool,
    words: str,
) -> None:
    async with InferenceClient(await serve_canned(body, headers, status)) as client:  # type: ignore[misc]
        result = await client.send(Ask(stream=stream))
    assert words in result.error
    assert (result.ok, result.status) == (False, status)


async def test_a_changed_echo_is_noticed(serve_canned: Callable[..., AsyncIterator[str]]) -> None:
    async with InferenceClient(await serve_canned(b"abd")) as client:  # type: ignore[misc]
        result = await client.echo(b"abc")
    assert "echo differs" in result.error


async def test_a_refused_connection_is_a_result() -> None:
    async with InferenceClient(f"http://{new_host()}:8000") as client:
        result = await client.send(Ask())
    assert (result.status, result.first_byte) == (0, None)
    assert "Connect" in result.error


async def test_a_request_that_takes_too_long_is_a_result(start: Start) -> None:
    simulator = await start()
    async with InferenceClient(simulator.url, timeout_s=0.2) as client:
        result = await client.send(Ask(max_tokens=30_000, extra={"ignore_eos": True}))
    assert "not complete within 0.2 s" in result.error


async def test_load_records_what_failed_while_a_server_was_down(start: Start) -> None:
    first = await start("--time-scale", "5")
    async with InferenceClient(first.url) as client, LoadRun(client, in_flight=8) as load:
        async with asyncio.timeout(60):
            await load.until(lambda r: r.ok, count=20)
            killed = time.monotonic()
            first.process.kill()
            await load.until(lambda r: not r.ok, count=3)
            await start("--time-scale", "5", host=first.host)
            back = time.monotonic()
            await load.until(lambda r: r.start > back and r.ok, count=20)
    in_flight = [r for r in load.failures(sent_before=killed) if r.end < killed]
    assert in_flight == []
    assert load.failures(sent_after=killed, sent_before=back)
    assert load.failures(sent_after=back) == []
    assert load.served_by(after=back) == {f"{first.host}:8000": len(load.sent(after=back))}
