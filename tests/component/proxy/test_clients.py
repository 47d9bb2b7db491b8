"""What clients of every kind meet at the proxy: limits, upgrades, request ids, broken streams, slow reads."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest

from pool_proxy import Proxy

Start = Callable[[bool], Awaitable[Proxy]]
LARGE_MEGABYTES = 32


async def raw(proxy: Proxy, request: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(proxy.settings.address, proxy.settings.port, limit=1 << 16)
    writer.write(request.encode())
    return reader, writer


@pytest.mark.parametrize(
    "upgrade",
    [
        "Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    ],
    ids=["Apache HttpClient", "Java's HttpClient"],
)
async def test_an_offer_to_upgrade_is_ignored(start_proxy: Start, upgrade: str) -> None:
    proxy = await start_proxy(True)
    request = f"POST /v1/completions HTTP/1.1\r\nHost: pool\r\n{upgrade}Content-Length: 2\r\n\r\n{{}}"

    reader, writer = await raw(proxy, request)
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()

    assert head.split()[1] == "200"
    assert "upgrade" not in head.lower()


@pytest.mark.parametrize("fail_open", [True, False], ids=["FailOpen", "FailClose"])
async def test_headers_that_vllm_takes_arrive(start_proxy: Start, fail_open: bool, tmp_path: Path) -> None:
    proxy = await start_proxy(fail_open)
    await proxy.end_picker()
    await proxy.start_real_picker(tmp_path)
    await proxy.until_the_picker_picks()

    for headers in (
        {"x-large": "x" * (64 << 10)},
        {"x-large": "x" * (3 << 20)},
        {f"x-{number}": str(number) for number in range(240)},
    ):
        async with proxy.client.get(f"{proxy.url}/v1/models", headers=headers) as response:
            assert response.status == 200
            arrived = (await response.json())["headers"]
        assert headers.items() <= arrived.items()


@pytest.mark.parametrize("own", [{}, {"x-request-id": "mine"}], ids=["generated", "the client's"])
@pytest.mark.parametrize("answer", ["response", "refusal", "no endpoint", "no picker"])
async def test_every_answer_carries_the_request_id(
    start_proxy: Start, answer: str, own: dict[str, str]
) -> None:
    proxy = await start_proxy(False)
    headers = {**own, **({"x-test-refuse": "429"} if answer == "refusal" else {})}
    if answer == "no endpoint":
        await proxy.set_pool()
    if answer == "no picker":
        proxy.signal_picker(signal.SIGKILL)

    async with proxy.client.post(f"{proxy.url}/v1/completions", headers=headers) as response:
        assert response.status == {"response": 200, "refusal": 429}.get(answer, 503)
        ids = response.headers.getall("x-request-id")
        text = await response.read()

    assert len(ids) == 1
    assert ids == list(own.values()) or (not own and ids[0])
    if answer == "response":
        assert json.loads(text)["headers"]["x-request-id"] == ids[0]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/completions", {}),
        ("/v1/messages", {}),
        ("/v1/messages/count_tokens?beta=true", {}),
        ("/x", {"anthropic-version": "1"}),
    ],
)
@pytest.mark.parametrize("missing", ["endpoint", "picker"])
async def test_the_proxys_own_answers_are_errors_in_the_callers_dialect(
    start_proxy: Start, missing: str, path: str, headers: dict[str, str]
) -> None:
    proxy = await start_proxy(False)
    if missing == "endpoint":
        await proxy.set_pool()
    else:
        proxy.signal_picker(signal.SIGKILL)

    async with proxy.client.post(f"{proxy.url}{path}", headers=headers, data=b"{}") as response:
        assert (response.status, response.content_type) == (503, "application/json")
        assert response.headers["retry-after"] == "1"
        answer = await response.json()

    assert "The proxy answered in place of a model server" in answer["error"]["message"]
    if path == "/v1/completions":
        assert answer["error"] | {"message": ""} == {
            "message": "",
            "type": "server_error",
            "param": None,
            "code": "proxy-error",
        }
    else:
        assert (answer["type"], answer["error"]["type"]) == ("error", "overloaded_error")
        assert answer["request_id"] == response.headers["x-request-id"]


async def test_a_pickers_refusal_stays_as_it_is(start_proxy: Start, tmp_path: Path) -> None:
    proxy = await start_proxy(False)
    async with proxy.client.post(f"{proxy.url}/v1/completions", headers={"x-test-refuse": "503"}) as response:
        assert (response.status, await response.text()) == (503, "refused")
    await proxy.end_picker()
    await proxy.start_real_picker(tmp_path)
    await proxy.until_the_picker_picks()
    json_type = {"content-type": "application/json"}
    async with proxy.client.post(f"{proxy.url}/v1/completions", data=b"no", headers=json_type) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "bad-request"


async def test_a_stream_that_breaks_ends_for_the_client_at_once(start_proxy: Start) -> None:
    proxy = await start_proxy(True)
    server = proxy.servers[0]
    headers = {"x-test-pick": server.endpoint}

    async with proxy.client.get(f"{proxy.url}/held/broken", headers=headers) as response:
        await server.held.wait()
        assert await response.content.readany() == server.endpoint.encode()
        server.release.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()

    # Envoy counts connections that it closed because a delay had passed.
    assert await proxy.count("envoy_http_downstream_cx_delayed_close_timeout") == 0


@pytest.mark.parametrize("version", [aiohttp.HttpVersion10, aiohttp.HttpVersion11], ids=["1.0", "1.1"])
async def test_a_slow_reader_gets_every_byte(start_proxy: Start, version: aiohttp.HttpVersion) -> None:
    proxy = await start_proxy(True)
    url = f"{proxy.url}/large/{LARGE_MEGABYTES}"

    # Pauses longer than Envoy's default delay before a close; the kernel's buffers hold a few megabytes.
    count = 0
    async with aiohttp.ClientSession(version=version) as session:
        async with session.get(url, headers={"connection": "close"}) as response:
            async for piece in response.content.iter_any():
                count += len(piece)
                if count % (4 << 20) < len(piece):
                    await asyncio.sleep(1.5)

    assert count == LARGE_MEGABYTES << 20


@pytest.mark.parametrize("size", [2_000, 100_000])
async def test_a_client_that_is_still_sending_reads_the_refusal(start_proxy: Start, size: int) -> None:
    proxy = await start_proxy(False)
    proxy.signal_picker(signal.SIGKILL)

    for _ in range(50):
        body = BytesIO(bytes(size))
        async with proxy.client.post(f"{proxy.url}/v1/completions", data=body) as response:
            assert response.status == 503
