"""A pool of processes in real time and its simulation agree: TTFT, TPOT, prefix hits of the same requests.

Three simulated model servers as processes, the real picker with its default configuration, the real Envoy
with the operator's bootstrap, and a client that sends 330 requests over five minutes; then the same
requests, engine parameters and configuration in `pool_simulation`. The engines are slow (0.5 s an
iteration), so that what the processes cost on a loaded machine is small beside it. The scrapes' timing and
the picker's random choices differ from run to run, so the simulated figures are the medians of nine seeds.

`make test-simulation_agrees` takes about six minutes; it needs a machine that is not starved.
"""

import asyncio
import hashlib
import itertools
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import pool_proxy
from endpoint_picker.config.registry import Registry
from inference_client import Ask, InferenceClient, Result
from model_server_sim.params import EngineParams
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.results import Fate, Results
from pool_simulation.simulation import Simulation
from pool_simulation.workload import Segment, SimulatedRequest
from pool_workloads import Steady
from simulator_process import new_host, spawn

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SERVERS = 3
DURATION_S = 300.0
RATE = 1.1
SEEDS = 9
PARAMS = EngineParams(
    num_gpu_blocks=1000,
    max_num_seqs=16,
    max_num_batched_tokens=1024,
    iteration_s=0.5,
    prefill_token_s=0.002,
    decode_sequence_s=0.008,
    context_token_s=0.0,
)
FLAGS = (
    "--model", "m", "--num-gpu-blocks", "1000", "--max-num-seqs", "16", "--max-num-batched-tokens", "1024",
    "--iteration-s", "0.5", "--prefill-token-s", "0.002", "--decode-sequence-s", "0.008",
    "--context-token-s", "0",
)  # fmt: skip


class Figures(NamedTuple):
    """What the two are compared by: seconds, and a share."""

    ttft_p50: float
    ttft_p90: float
    tpot_p50: float
    tpot_p90: float
    hit_rate: float

    @staticmethod
    def of(ttft: Sequence[float], tpot: Sequence[float], cached: int, prompts: int) -> "Figures":
        ttft_p50, ttft_p90 = map(float, np.percentile(ttft, [50, 90]))
        tpot_p50, tpot_p90 = map(float, np.percentile(tpot, [50, 90]))
        return Figures(ttft_p50, ttft_p90, tpot_p50, tpot_p90, cached / prompts)


def workload() -> Steady:
    return Steady(RATE, heads=48, head_tokens=512, tail_tokens=128, output_tokens=40)


def requests() -> list[SimulatedRequest]:
    return list(itertools.takewhile(lambda one: one.arrival_s < DURATION_S, workload().arrivals()))


def text(prompt: Sequence[Segment]) -> str:
    """Return four characters a token: equal segments give equal text."""
    pieces = []
    for number, tokens in prompt:
        digest = hashlib.sha256(f"{number}/{tokens}".encode()).hexdigest()
        pieces.append((digest * (tokens // 16 + 1))[: 4 * tokens])
    return "".join(pieces)


async def lived(folder: Path) -> Figures:
    """Send the requests to the pool of processes when they are due."""
    async with AsyncExitStack() as stack:
        proxy = await pool_proxy.prepare(stack, fail_open=False)
        servers = []
        for _ in range(SERVERS):
            server = await spawn(*FLAGS, host=new_host())
            stack.push_async_callback(server.process.wait)
            stack.callback(server.process.kill)
            await server.until_health(200)
            servers.append(pool_proxy.ModelServer(server.host, 8000))
        proxy.servers[:] = servers
        await proxy.start_real_picker(folder)
        await pool_proxy.start_envoy(proxy)
        await proxy.until_healthy_servers_are(SERVERS)
        client = await stack.enter_async_context(InferenceClient(proxy.url, timeout_s=120))

        async def answers() -> bool:
            return (await client.models()).ok

        await pool_proxy.eventually(answers)
        begun = asyncio.get_running_loop().time()

        async def send(one: SimulatedRequest) -> Result:
            body = Ask(
                prompt=text(one.prompt), model="m", stream=True, max_tokens=one.output_tokens,
                extra={"ignore_eos": True},
            )  # fmt: skip
            await asyncio.sleep(begun + one.arrival_s - asyncio.get_running_loop().time())
            return await client.send(body)

        sent = requests()
        results = await asyncio.gather(*map(send, sent))
    assert [result.error for result in results if result.error] == []
    ttft, tpot, cached, prompts = [], [], 0, 0
    for one, result in zip(sent, results, strict=True):
        assert result.first_byte is not None
        assert result.usage["prompt_tokens"] == one.prompt_tokens
        assert result.usage["completion_tokens"] == one.output_tokens
        details = result.usage["prompt_tokens_details"]
        assert isinstance(details, dict)
        cached += details["cached_tokens"]
        prompts += one.prompt_tokens
        ttft.append(result.first_byte - result.start)
        tpot.append((result.end - result.first_byte) / (one.output_tokens - 1))
    return Figures.of(ttft, tpot, cached, prompts)


def simulated(seed: str) -> Figures:
    policy = PickerPolicy(PickerSettings(), Registry.installed(), seed)
    run = Simulation([PARAMS] * SERVERS, workload(), policy, duration_s=DURATION_S, seed=seed)
    results: Results = run.run()
    assert set(results.fates) == {Fate.SERVED}
    ttft = np.array(results.first_token_s) - np.array(results.arrived_s)
    gaps = np.array(results.output_tokens) - 1
    tpot = (np.array(results.ended_s) - np.array(results.first_token_s)) / gaps
    return Figures.of(list(ttft), list(tpot), sum(results.cached_tokens), sum(results.prompt_tokens))


async def test_real_time_and_simulation_agree(tmp_path: Path) -> None:
    live = await lived(tmp_path)
    runs = [simulated(str(seed)) for seed in range(SEEDS)]
    model = Figures(*(statistics.median(column) for column in zip(*runs, strict=True)))
    spread = [f"{min(column):.3f} to {max(column):.3f}" for column in zip(*runs, strict=True)]
    print(f"\nlive {live}\nsimulated {model}\nspread of the seeds {spread}")
    for name in ("ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90"):
        assert getattr(live, name) == pytest.approx(getattr(model, name), rel=0.10), name
    assert live.hit_rate == pytest.approx(model.hit_rate, abs=0.03)
