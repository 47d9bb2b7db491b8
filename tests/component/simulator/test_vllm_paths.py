"""Paths of vLLM beside the two that generate: tokens, adapters, sleep, engines behind one port."""

import asyncio
from typing import Any

import aiohttp
import pytest

from inference_client import Ask, InferenceClient, LoadRun
from simulator_process import Simulator, Start

FAST = ("--time-scale", "20")
LONG = {"ignore_eos": True}
DEV = {"VLLM_SERVER_DEV_MODE": "1"}
RUNTIME_LORA = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


async def post(simulator: Simulator, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(simulator.url + path, json=body or {}) as response,
    ):
        return response.status, await response.text()


async def answer(simulator: Simulator, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(simulator.url + path, json=body) as response,
    ):
        fields = await response.json()
    assert response.status == 200, fields
    assert isinstance(fields, dict)
    return fields


async def test_the_tokens_of_a_prompt_are_a_prompt_with_the_same_cache_blocks(start: Start) -> None:
    simulator = await start(*FAST)
    text = "The quick brown fox. " * 40
    tokenized = await answer(simulator, "/tokenize", {"prompt": text})
    assert tokenized["count"] == len(tokenized["tokens"]) == 210
    assert tokenized["max_model_len"] == 32_768
    assert (await answer(simulator, "/detokenize", {"tokens": tokenized["tokens"]}))["prompt"] == text
    first = await answer(simulator, "/v1/completions", {"prompt": text, "max_tokens": 1})
    second = await answer(simulator, "/v1/completions", {"prompt": tokenized["tokens"], "max_tokens": 1})
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"] == 210
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 208
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    whole = await answer(simulator, "/v1/chat/completions", {**chat, "max_tokens": 1})
    assert whole["usage"]["prompt_tokens"] == (await answer(simulator, "/tokenize", chat))["count"]


async def test_an_adapter_can_be_loaded_used_and_unloaded(start: Start) -> None:
    simulator = await start(*FAST, env=RUNTIME_LORA)
    load = {"lora_name": "tuned", "lora_path": "/adapters/tuned"}
    async with InferenceClient(simulator.url) as client:
        assert (await client.send(Ask(model="tuned"))).status == 404
        assert (await post(simulator, "/v1/load_lora_adapter", load))[0] == 200
        assert (await post(simulator, "/v1/load_lora_adapter", load))[0] == 400
        assert (await client.models()).text.endswith(",tuned")
        assert (await client.send(Ask(model="tuned"))).ok
        _, page = await simulator.get("/metrics")
        assert 'vllm:lora_requests_info{max_lora="4",running_lora_adapters=""' in page
        assert (await post(simulator, "/v1/unload_lora_adapter", {"lora_name": "tuned"}))[0] == 200
        assert (await post(simulator, "/v1/unload_lora_adapter", {"lora_name": "tuned"}))[0] == 404
        assert (await client.send(Ask(model="tuned"))).status == 404
    assert (await post(simulator, "/v1/load_lora_adapter", {"lora_name": "x"}))[0] == 400


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/sleep", "/reset_prefix_cache"])
async def test_paths_that_change_the_server_are_off_by_default_as_in_vllm(start: Start, path: str) -> None:
    simulator = await start()
    assert (await post(simulator, path, {"lora_name": "a", "lora_path": "b"}))[0] == 404


async def test_a_sleeping_server_keeps_requests_until_it_wakes_and_forgets_its_prefixes(start: Start) -> None:
    simulator = await start(*FAST, env=DEV)
    prompt = "x" * 6400
    async with InferenceClient(simulator.url) as client:
        assert (await client.send(Ask(prompt=prompt))).ok
        assert (await post(simulator, "/sleep?level=2"))[0] == 200
        assert (await simulator.get("/is_sleeping"))[1] == '{"is_sleeping": true}'
        _, page = await simulator.get("/metrics")
        assert 'sleep_state="discard_all"} 1.0' in page
        assert 'sleep_state="awake"} 0.0' in page
        waiting = asyncio.create_task(client.send(Ask(prompt=prompt)))
        await simulator.until_metric("vllm:num_requests_waiting", lambda v: v == 1)
        assert (await post(simulator, "/wake_up"))[0] == 200
        result = await waiting
    assert result.error == ""
    assert result.usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert (await post(simulator, "/sleep?level=3"))[0] == 400


async def test_engines_behind_one_port_share_the_load_and_show_a_series_each(start: Start) -> None:
    simulator = await start("--data-parallel-size", "3", "--max-num-seqs", "2")
    async with InferenceClient(simulator.url) as client:
        ask = Ask(max_tokens=100, extra=LONG)
        async with LoadRun(client, in_flight=6, make=lambda _: ask) as load:
            await simulator.until_metric("vllm:num_requests_running", lambda v: v == 6)
            _, page = await simulator.get("/metrics")
        assert load.failures() == []
    for engine in "012":
        assert f'vllm:num_requests_running{{engine="{engine}",' in page
    assert page.count("# TYPE vllm:num_requests_running gauge") == 1
    assert page.count('vllm:cache_config_info{block_size="16"') == 3


async def test_a_request_may_name_the_rank_that_serves_it(start: Start) -> None:
    simulator = await start(*FAST, "--data-parallel-size", "2")
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "a", "max_tokens": 1}
        for rank, status in (("1", 200), ("1", 200), ("7", 400)):
            headers = {"x-data-parallel-rank": rank}
            async with session.post(
                simulator.url + "/v1/completions", json=body, headers=headers
            ) as response:
                assert response.status == status
    _, page = await simulator.get("/metrics")
    done = [line for line in page.splitlines() if "request_success_total" in line and line.endswith(" 2.0")]
    assert len(done) == 1
    assert 'engine="1"' in done[0]


async def test_a_prompt_computed_by_one_server_is_decoded_by_another(start: Start) -> None:
    prefill, decode = await start(*FAST), await start(*FAST)
    body = {"prompt": "y" * 4000}
    wanted = {"kv_transfer_params": {"do_remote_decode": True}}
    first = await answer(prefill, "/v1/completions", {**body, **wanted, "max_tokens": 1})
    params = first["kv_transfer_params"]
    assert (params["do_remote_prefill"], params["remote_host"]) == (True, prefill.host)
    second = await answer(decode, "/v1/completions", {**body, "max_tokens": 8, "kv_transfer_params": params})
    assert second["usage"]["completion_tokens"] == 8
    assert await decode.metric("vllm:external_prefix_cache_hits_total") == 999
    await prefill.until_metric("vllm:kv_cache_usage_perc", lambda v: v == 0)
    assert (await post(prefill, "/v1/completions", {**body, **wanted, "max_tokens": 2}))[0] == 400
