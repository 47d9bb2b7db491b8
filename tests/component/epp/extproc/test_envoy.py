"""The picker behind the real Envoy: what a client and a model server see."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest

from envoy_stage import JSON, Stage, eventually, post, prompt, streaming, until


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack, tmp_path / "envoy.log")


async def streamed(client: aiohttp.ClientSession, url: str, body: bytes) -> bytes:
    """Send a streaming request and return the request body as the events give it back."""
    async with client.post(f"{url}/v1/completions", data=BytesIO(body), headers=JSON) as response:
        assert response.status == 200, await response.text()
        raw = await response.read()
    events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n")]
    assert events[-2:] == [b"[DONE]", b""]
    return b"".join(json.loads(event)["text"].encode("latin-1") for event in events[:-3])


either_way = pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])


@either_way
async def test_two_hundred_concurrent_streams_are_intact_both_ways(stage: Stage, tls: bool) -> None:
    await stage.start(servers=3, tls=tls)
    bodies = [streaming(200 + 977 * seed, seed) for seed in range(200)]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        back = await asyncio.gather(*(streamed(client, stage.url, body) for body in bodies))
    assert back == bodies
    await stage.settled()
    assert sum(each.requests for each in stage.servers) == 200
    assert min(each.requests for each in stage.servers) > 20


@either_way
async def test_bodies_far_larger_than_all_windows_are_served(stage: Stage, tls: bool) -> None:
    """Envoy lifts a window that has run dry by more than one write takes. More: tests/long/test_bodies.py."""
    await stage.start(tls=tls)
    body = prompt(64_000_000)
    for _ in range(4):
        answer = await post(stage, body)
        assert answer["digest"] == hashlib.sha256(body).hexdigest()
    await stage.settled()


async def test_many_large_bodies_on_one_connection_wait_for_each_other(stage: Stage) -> None:
    """Envoy sends what it has of a body as one message, and all messages over one connection."""
    await stage.start(servers=2)
    bodies = [prompt(1_000_000, seed) for seed in range(100)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def digest(body: bytes) -> str:
            async with client.post(f"{stage.url}/v1/completions", data=body, headers=JSON) as response:
                assert response.status == 200, await response.text()
                return str((await response.json())["digest"])

        digests = await asyncio.gather(*(digest(body) for body in bodies))
    assert digests == [hashlib.sha256(body).hexdigest() for body in bodies]
    await stage.settled()


@either_way
async def test_large_responses_arrive_whole(stage: Stage, tls: bool) -> None:
    await stage.start(tls=tls)
    bodies = [streaming(3_000_000 + 977 * seed, seed) for seed in range(4)]
    back = await asyncio.gather(*(streamed(stage.client, stage.url, body) for body in bodies))
    assert back == bodies
    await stage.settled()


async def test_a_model_server_sees_none_of_the_control_headers(stage: Stage) -> None:
    await stage.start(servers=1)
    sent = {"x-gateway-destination-endpoint": "127.0.0.9:1", "x-prefiller-host-port": "127.0.0.9:2"}
    await post(stage, prompt(100), **sent, **{"test-epp-endpoint-selection": "kept"})
    seen = stage.servers[0].headers
    assert seen["x-gateway-destination-endpoint"] == stage.servers[0].address
    assert seen["test-epp-endpoint-selection"] == "kept"
    assert "x-prefiller-host-port" not in seen


async def test_a_body_over_the_limit_gets_413_and_the_next_request_is_served(stage: Stage) -> None:
    await stage.start("--max-request-bytes", "1000000", servers=1)
    body = prompt(3_000_000)
    async with stage.client.post(f"{stage.url}/v1/completions", data=BytesIO(body), headers=JSON) as response:
        assert response.status == 413
        assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-too-large"
    await post(stage, prompt(900_000))
    assert stage.servers[0].requests == 1
    await stage.settled()


async def test_header_fields_over_the_limit_get_431_and_the_next_request_is_served(stage: Stage) -> None:
    await stage.start("--max-header-fields", "50", "--max-header-bytes", "20000", servers=1)
    url = f"{stage.url}/v1/models"
    for headers in ({f"x-{number}": "v" for number in range(60)}, {"x-long": "v" * 20_000}):
        async with stage.client.get(url, headers=headers) as response:
            assert response.status == 431
            assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-headers-too-large"
            assert "more than 50 header fields" in (await response.json())["error"]["message"]
        async with stage.client.get(url, headers={"x-fits": "v" * 8_000}) as response:
            assert response.status == 200
    await stage.settled()


async def test_a_get_is_routed(stage: Stage) -> None:
    await stage.start(servers=1)
    async with stage.client.get(f"{stage.url}/v1/models") as response:
        assert await response.json() == {"server": stage.servers[0].address}
    await stage.settled()


@pytest.mark.parametrize("body", [b"no json", b'{"prompt": "x"}', b"[]"])
async def test_a_bad_body_gets_400_with_a_sentence(stage: Stage, body: bytes) -> None:
    await stage.start(servers=1)
    async with stage.client.post(f"{stage.url}/v1/completions", data=BytesIO(body), headers=JSON) as response:
        assert response.status == 400
        assert response.content_type == "application/json"
        assert (await response.json())["error"]["message"]
    await stage.settled()


@either_way
async def test_no_endpoint_gets_503_and_endpoints_are_followed(stage: Stage, tls: bool) -> None:
    await stage.start(servers=2, tls=tls)
    stage.offer()
    async with stage.client.post(f"{stage.url}/v1/completions", data=prompt(10), headers=JSON) as response:
        assert response.status == 503
        assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
    stage.offer(stage.servers[1])

    async def served_by(address: str) -> bool:
        async with stage.client.get(f"{stage.url}/v1/models") as response:
            return response.status == 200 and (await response.json())["server"] == address

    await eventually(lambda: served_by(stage.servers[1].address))
    assert stage.servers[0].requests == 0
    await stage.settled()


async def test_the_subset_hint_is_obeyed(stage: Stage) -> None:
    await stage.start(servers=3, subset=slice(1, 2))
    for seed in range(6):
        answer = await post(stage, prompt(1000, seed))
        assert answer["server"] == stage.servers[1].address
    await stage.settled()


async def test_an_empty_subset_gets_503(stage: Stage) -> None:
    await stage.start(servers=1, subset=slice(0, 0))
    async with stage.client.post(f"{stage.url}/v1/completions", data=prompt(10), headers=JSON) as response:
        assert response.status == 503


async def test_a_body_cut_short_leaves_nothing_behind(stage: Stage) -> None:
    await stage.start(servers=1)
    host, _, port = stage.url.removeprefix("http://").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: 1000\r\n\r\n".encode() + b"x" * 500)
    await until(lambda: stage.picker.budget.held_bytes == 500)
    writer.close()
    await writer.wait_closed()
    await stage.settled()
    assert stage.servers[0].requests == 0


@either_way
async def test_a_client_that_leaves_mid_stream_gives_its_reservation_back(stage: Stage, tls: bool) -> None:
    await stage.start(servers=1, tls=tls)
    response = await stage.client.post(
        f"{stage.url}/v1/completions", data=BytesIO(streaming(8_000_000, 1)), headers=JSON
    )
    await response.content.readany()
    assert stage.router.ledger.held
    response.close()
    await stage.settled()


@either_way
async def test_request_trailers_pass(stage: Stage, tls: bool) -> None:
    await stage.start(servers=1, tls=tls)
    host, _, port = stage.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = prompt(50)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunk + b"0\r\nx-sum: 1\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert hashlib.sha256(body).hexdigest().encode() in answer
    writer.close()
    await writer.wait_closed()
    await stage.settled()


async def test_usage_and_the_served_endpoint_reach_the_metrics(stage: Stage) -> None:
    await stage.start(servers=1)
    await post(stage, prompt(100))
    await stage.settled()
    async with stage.client.get(f"http://127.0.0.1:{stage.picker.metrics_port}/metrics") as response:
        page = await response.text()
    assert 'llm_d_epp_request_total{fairness_id="default-flow",model_name="m"' in page
    assert "llm_d_epp_served_elsewhere_total 0.0" in page
    assert 'llm_d_epp_request_output_tokens_sum{fairness_id="default-flow",model_name="m"' in page
    assert 'llm_d_epp_exchanges_total{ending="completed"} 1.0' in page
