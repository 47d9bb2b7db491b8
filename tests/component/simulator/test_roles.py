"""A decode server has prompts computed where a header says, and computes them itself when that fails."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from envoy_proxy import free_port
from simulator_process import Simulator, Start

FAST = ("--time-scale", "20", "--admin")
PREFILL, DECODE, ENCODE = (("--role", each) for each in ("prefill", "decode", "encode"))
BODY = {"prompt": "y" * 4000, "max_tokens": 8}
HITS = "vllm:external_prefix_cache_hits_total"
PROMPTS = "vllm:prompt_tokens_total"


async def ask(
    server: Simulator, body: dict[str, Any], path: str = "/v1/completions", **headers: str
) -> tuple[int, dict[str, str], str]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, json=body, headers=sent) as response,
    ):
        return response.status, dict(response.headers), await response.text()


def hostport(server: Simulator) -> str:
    return f"{server.host}:8000"


async def test_the_named_server_computes_the_prompt_and_this_one_answers(start: Start) -> None:
    prefill, decode = await start(*FAST, *PREFILL), await start(*FAST, *DECODE)
    plain = await ask(decode, BODY)
    other = {**BODY, "prompt": "z" * 4000}
    status, headers, text = await ask(decode, other, x_prefiller_host_port=hostport(prefill))
    assert status == 200
    assert headers["x-sim-prefilled-by"] == hostport(prefill)
    assert json.loads(text)["usage"]["completion_tokens"] == 8
    assert await prefill.metric(PROMPTS) == 1000
    assert await decode.metric(HITS) == 999
    # A stream gets the same words, and so does a request whose prompt this server computes.
    again = await ask(decode, BODY, x_prefiller_host_port=hostport(prefill))
    assert json.loads(again[2])["choices"] == json.loads(plain[2])["choices"]
    status, headers, text = await ask(
        decode, {**BODY, "prompt": "w" * 4000, "stream": True}, x_prefiller_host_port=hostport(prefill)
    )
    assert (status, headers["x-sim-prefilled-by"]) == (200, hostport(prefill))
    assert text.endswith("data: [DONE]\n\n")
    await prefill.until_metric("vllm:kv_cache_usage_perc", lambda usage: usage == 0)


async def test_a_chat_with_a_limit_of_its_own_is_prefilled_too(start: Start) -> None:
    prefill, decode = await start(*FAST, *PREFILL), await start(*FAST, *DECODE)
    body = {"messages": [{"role": "user", "content": "y" * 4000}], "max_completion_tokens": 5, "stream": True}
    body["stream_options"] = {"include_usage": True}
    status, headers, text = await ask(
        decode, body, "/v1/chat/completions", x_prefiller_host_port=hostport(prefill)
    )
    assert (status, headers["x-sim-prefilled-by"]) == (200, hostport(prefill))
    assert '"completion_tokens":5' in text


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ({"error_rate": 1.0, "error_status": 503}, "status-503"),
        ({"hang": "server"}, "timeout"),
        ({"hang": "engine"}, "timeout"),
    ],
)
async def test_a_server_that_fails_costs_at_most_the_limit(
    start: Start, fault: dict[str, Any], word: str
) -> None:
    prefill = await start(*FAST, *PREFILL)
    decode = await start(*FAST, *DECODE, "--prefill-limit-s", "0.5")
    async with aiohttp.ClientSession() as session:
        await session.patch(prefill.url + "/sim/faults", json=fault)
    status, headers, text = await ask(decode, BODY, x_prefiller_host_port=hostport(prefill))
    assert status == 200
    assert headers["x-sim-prefill-fallback"] == word
    assert "x-sim-prefilled-by" not in headers
    assert json.loads(text)["usage"]["completion_tokens"] == 8
    assert await decode.metric(HITS) == 0


@pytest.mark.parametrize("named", ["127.0.0.1:{port}", "no host at all", "[::1", "127.0.0.1"])
async def test_a_server_that_is_not_there_is_done_without(start: Start, named: str) -> None:
    decode = await start(*FAST, *DECODE)
    status, headers, _ = await ask(decode, BODY, x_prefiller_host_port=named.format(port=free_port()))
    assert (status, headers["x-sim-prefill-fallback"]) == (200, "unreachable")


async def test_a_server_sends_no_prompt_to_itself(start: Start) -> None:
    decode = await start(*FAST, *DECODE)
    status, headers, _ = await ask(decode, BODY, x_prefiller_host_port=hostport(decode))
    assert status == 200
    assert not any(name.startswith("x-sim-prefill") for name in map(str.lower, headers))


async def test_a_request_that_is_refused_here_asks_nobody(start: Start) -> None:
    prefill, decode = await start(*FAST, *PREFILL), await start(*FAST, *DECODE)
    status, _, _ = await ask(decode, {"prompt": 7}, x_prefiller_host_port=hostport(prefill))
    assert status == 400
    assert await prefill.metric(PROMPTS) == 0


async def test_a_client_that_hangs_up_ends_the_prefill(start: Start) -> None:
    prefill, decode = await start("--admin", *PREFILL), await start("--admin", *DECODE)
    async with aiohttp.ClientSession() as session:
        await session.patch(prefill.url + "/sim/faults", json={"hang": "engine"})
        asking = asyncio.create_task(ask(decode, BODY, x_prefiller_host_port=hostport(prefill)))
        await prefill.until_metric("vllm:num_requests_waiting", lambda waiting: waiting == 1)
        asking.cancel()
        await prefill.until_metric("vllm:num_requests_waiting", lambda waiting: waiting == 0)


async def test_prefill_and_encode_servers_answer_no_client(start: Start) -> None:
    prefill, encode = await start(*FAST, *PREFILL), await start(*FAST, *ENCODE)
    for server in (prefill, encode):
        status, _, text = await ask(server, BODY)
        assert status == 400
        assert "this server" in text


async def test_media_are_encoded_by_the_named_servers_in_turn(start: Start) -> None:
    one, two, decode = await start(*FAST, *ENCODE), await start(*FAST, *ENCODE), await start(*FAST, *DECODE)
    parts = [{"type": "image_url", "image_url": {"url": f"data:{n}"}} for n in range(3)]
    message = {"role": "user", "content": [{"type": "text", "text": "what?"}, *parts]}
    encoders = f"{hostport(one)}, {hostport(two)}"
    status, headers, _ = await ask(
        decode,
        {"messages": [message], "max_tokens": 2},
        "/v1/chat/completions",
        x_encoder_hosts_ports=encoders,
    )
    assert status == 200
    assert headers["x-sim-encoded-by"] == ",".join([hostport(one), hostport(two), hostport(one)])
    one.process.kill()
    await one.process.wait()
    status, headers, _ = await ask(
        decode,
        {"messages": [message], "max_tokens": 2},
        "/v1/chat/completions",
        x_encoder_hosts_ports=encoders,
    )
    assert (status, headers["x-sim-encoded-by"]) == (200, hostport(two))


async def test_a_server_without_role_ignores_the_headers(start: Start) -> None:
    server = await start(*FAST)
    status, headers, _ = await ask(server, BODY, x_prefiller_host_port="127.0.0.1:1")
    assert status == 200
    assert not any(name.startswith("x-sim-prefill") for name in map(str.lower, headers))


async def test_the_role_may_come_from_the_environment(start: Start) -> None:
    server = await start(*FAST, env={"MODEL_SERVER_ROLE": "prefill"})
    assert (await ask(server, BODY))[0] == 400
