"""Faults of a real server, injected by request."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from inference_client import Ask, InferenceClient
from simulator_process import Simulator, Start

LONG = {"ignore_eos": True}


async def inject(simulator: Simulator, **faults: Any) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.patch(simulator.url + "/sim/faults", json=faults) as response,
    ):
        fields = await response.json()
    assert response.status == 200, fields
    assert isinstance(fields, dict)
    return fields


async def test_without_the_flag_nobody_can_break_the_server(start: Start) -> None:
    simulator = await start()
    assert (await simulator.get("/sim/faults"))[0] == 404
    async with (
        aiohttp.ClientSession() as session,
        session.post(simulator.url + "/sim/crash") as response,
    ):
        assert response.status == 404
    assert (await simulator.get("/health"))[0] == 200


async def test_a_hung_engine_answers_health_but_gives_no_token_until_it_is_healed(start: Start) -> None:
    simulator = await start("--admin")
    async with InferenceClient(simulator.url) as client:
        call = asyncio.create_task(client.send(Ask(stream=True, max_tokens=200, extra=LONG)))
        await simulator.until_metric("vllm:generation_tokens_total", lambda v: v > 3)
        await inject(simulator, hang="engine")
        before = await simulator.metric("vllm:generation_tokens_total")
        queued = asyncio.create_task(client.send(Ask(max_tokens=1)))
        await simulator.until_metric("vllm:num_requests_waiting", lambda v: v == 1)
        assert (await simulator.get("/health"))[0] == 200
        assert await simulator.metric("vllm:generation_tokens_total") == before < 200
        await inject(simulator, hang="no")
        results = await asyncio.gather(call, queued)
    assert [r.error for r in results] == ["", ""]


async def test_a_hung_server_answers_nothing_until_it_is_healed(start: Start) -> None:
    simulator = await start("--admin")
    await inject(simulator, hang="server")
    health = asyncio.create_task(simulator.get("/health"))
    assert json.loads((await simulator.get("/sim/faults"))[1])["hang"] == "server"
    assert not health.done()
    await inject(simulator, hang="no")
    assert (await health)[0] == 200


async def test_a_slow_server_takes_the_factor_longer_in_simulated_time(start: Start) -> None:
    simulator = await start("--admin", "--jitter", "0", "--time-scale", "10")
    async with InferenceClient(simulator.url) as client:
        sums = [0.0]
        for factor in (1, 4):
            await inject(simulator, slow=factor)
            assert (await client.send(Ask(max_tokens=20, prompt=f"{factor}", extra=LONG))).ok
            sums.append(await simulator.metric("vllm:request_decode_time_seconds_sum"))
    assert sums[2] - sums[1] == pytest.approx(4 * sums[1], rel=0.01)


async def test_errors_and_resets_come_at_their_rates(start: Start) -> None:
    simulator = await start("--admin", "--time-scale", "20")
    await inject(simulator, error_rate=1, error_status=503)
    async with InferenceClient(simulator.url) as client:
        refused = await client.send(Ask())
        await inject(simulator, error_rate=0, reset_rate=1, reset_after_tokens=5)
        cut = await client.send(Ask(stream=True, max_tokens=50, extra=LONG))
        await inject(simulator, reset_rate=0)
        whole = await client.send(Ask(stream=True, max_tokens=50, extra=LONG))
    assert refused.status == 503
    assert cut.status == 200
    assert cut.error  # the connection broke after the first bytes
    assert whole.error == ""
    await simulator.until_metric("vllm:num_requests_running", lambda v: v == 0)


async def test_a_stream_is_cut_though_all_its_tokens_come_at_once(start: Start) -> None:
    simulator = await start("--admin", "--time-scale", "1000000")
    await inject(simulator, reset_rate=1, reset_after_tokens=3)
    async with InferenceClient(simulator.url) as client:
        cuts = [await client.send(Ask(stream=True, max_tokens=6, extra=LONG)) for _ in range(10)]
    assert all(cut.error for cut in cuts)


async def test_metrics_freeze_or_vanish(start: Start) -> None:
    simulator = await start("--admin", "--time-scale", "20")
    await inject(simulator, metrics="stale")
    async with InferenceClient(simulator.url) as client:
        assert (await client.send(Ask(max_tokens=5))).ok
    assert await simulator.metric("vllm:request_success_total") == 0
    await inject(simulator, metrics="absent")
    assert (await simulator.get("/metrics"))[0] == 404
    await inject(simulator, metrics="live")
    assert await simulator.metric("vllm:request_success_total") == 1


async def test_a_crash_ends_the_process_at_once(start: Start) -> None:
    simulator = await start("--admin")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(simulator.url + "/sim/crash")
    assert await simulator.exit_code() == 137
