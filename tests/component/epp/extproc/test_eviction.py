"""A request that the picker takes back: its client gets 429, and Envoy ends it at the model server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from endpoint_picker.waiting_timer import WaitingTimer
from envoy_stage import JSON, Stage, until
from simulator_process import Simulator, new_host, spawn

CONFIG = """
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: active-request-scorer}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  enableEviction: true
"""
OBJECTIVES = {"objectives": {"batch": {"priority": -10}, "chat": {"priority": 10}}}


@dataclass(frozen=True, slots=True)
class Address:
    address: str


@pytest.fixture
async def server() -> AsyncIterator[Simulator]:
    """Run a model server; 20,000 tokens take it minutes."""
    server = await spawn("--model", "m", "--seed", "1", host=new_host())
    try:
        await server.until_health(200)
        yield server
    finally:
        server.process.kill()
        await server.process.wait()


@pytest.fixture(params=["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED"])
async def stage(tmp_path: Path, server: Simulator, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """Serve the model server in each body mode in which a request may wait."""
    async with AsyncExitStack() as stack:
        stage = Stage(stack, tmp_path / "envoy.log")
        assert stage.router.apply_config(CONFIG), stage.router.config_error
        assert stage.router.apply_priorities(json.dumps(OBJECTIVES)), stage.router.priorities_error
        timer = WaitingTimer(stage.router, asyncio.get_running_loop())
        stack.callback(timer.close)
        await stage.start(servers=0, modes=(request.param, request.param))
        stage.offer(Address(f"{server.host}:8000"))
        yield stage


def ask(stage: Stage, objective: str, tokens: int, *, stream: bool = False) -> asyncio.Task[tuple[int, str]]:
    body = {"model": "m", "prompt": "a b c", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    headers = {**JSON, "x-llm-d-inference-objective": objective}

    async def send() -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=60)
        url = f"{stage.url}/v1/completions"
        async with stage.client.post(url, json=body, headers=headers, timeout=timeout) as response:
            text = await response.text()
            if response.status == 429:
                assert 1 <= int(response.headers["retry-after"]) <= 300
                assert response.headers["x-llm-d-request-dropped-reason"] == "evicted"
                assert json.loads(text)["error"]["code"] == "evicted"
            return response.status, text

    return asyncio.create_task(send())


async def test_batch_at_the_server_gives_way_to_chat(stage: Stage, server: Simulator) -> None:
    batch = ask(stage, "batch", 20_000)
    await server.until_metric("vllm:num_requests_running", lambda value: value == 1)
    status, _text = await ask(stage, "chat", 3)
    assert status == 200
    assert (await batch)[0] == 429
    await server.until_metric("vllm:num_requests_running", lambda value: value == 0)
    _, page = await server.get("/metrics")
    aborted = [line for line in page.splitlines() if "request_success_total" in line and '"abort"' in line]
    assert [line.rsplit(" ", 1)[1] for line in aborted] == ["1.0"]
    await stage.settled()
    (kept,) = (each for each in stage.router.decisions.newest() if each.refusal is not None)
    assert kept.priority == -10
    running = stage.picker.metrics.request_running
    assert {sample.value for sample in running.collect().samples} == {0}


async def test_an_answer_that_streams_is_not_cut(stage: Stage, server: Simulator) -> None:
    batch = ask(stage, "batch", 300, stream=True)
    await until(lambda: any(record for record in stage.router.table.inflight_requests))
    await server.until_metric("vllm:generation_tokens_total", lambda value: value > 3)
    chat = ask(stage, "chat", 3)
    assert (await batch)[0] == 200
    assert (await chat)[0] == 200
    await stage.settled()
