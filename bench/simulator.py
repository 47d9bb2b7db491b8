"""CPU cost of the simulator, and its live timing compared with its model's: one JSON line a figure on stdout.

Times are CPU seconds of the process under test; medians of ROUNDS rounds, with the spread beside them.
Run: python bench/simulator.py
"""

import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import time

import psutil
from typing_extensions import override

from model_server_sim.client import Ask, InferenceClient
from model_server_sim.engine import Engine, Request
from model_server_sim.load import LoadRun
from model_server_sim.metrics import EngineMetrics
from model_server_sim.params import EngineParams

ROUNDS = 7
STREAMS = 100
TOKENS = 64
HOST = "127.0.91.1"
MANY = 2000
"""Streams that the server holds at once in the figure of that name."""
MANY_TOKENS = 30


def report(figure: str, values: list[float], unit: str, goal: float) -> None:
    """Print a figure; `ok` means at or below its goal."""
    value = statistics.median(values)
    line = {"figure": figure, "value": round(value, 3), "unit": unit, "goal": goal, "ok": value <= goal}
    print(json.dumps({**line, "low": round(min(values), 3), "high": round(max(values), 3)}), flush=True)


def engine_round(seed: int) -> tuple[float, float, int]:
    """Return microseconds per token of a bare engine, per changed metrics page, and the page's bytes."""
    params = EngineParams()
    engine = Engine(params, random.Random(seed).random)
    metrics = EngineMetrics(params, "meta-llama/Llama-3.1-8B-Instruct", 0, created=0.0, with_lora=False)
    for index in range(400):
        hashes = tuple(range(index % 8 * 100, index % 8 * 100 + 60))
        engine.submit(
            Request(request_id=str(index), prompt_tokens=1000, output_tokens=100, block_hashes=hashes), 0.0
        )
    now: float | None = 0.0
    pages_s, pages, size = 0.0, 0, 0
    start = time.process_time()
    while now is not None:
        step = engine.step(now)
        metrics.record(engine, step)
        now = step.next_time
        if engine.counters.iterations % 8 == 0:
            before = time.process_time()
            size = len(metrics.page(engine, 0.0))
            pages_s, pages = pages_s + time.process_time() - before, pages + 1
    spent_s = time.process_time() - start - pages_s
    return 1e6 * spent_s / engine.counters.generation_tokens, 1e6 * pages_s / pages, size


async def live_round(client: InferenceClient, process: psutil.Process) -> tuple[float, float]:
    """Return microseconds of the server's CPU per streamed token, and its request time over the model's."""

    def make(number: int) -> Ask:
        prompt = f"{number} {time.monotonic()} " * 20
        return Ask(prompt=prompt, stream=True, max_tokens=TOKENS, extra={"ignore_eos": True})

    begun = await modelled_s(client)
    before = process.cpu_times()
    async with LoadRun(client, in_flight=STREAMS, make=make) as load:
        await load.until(lambda result: result.ok, count=2 * STREAMS)
    after = process.cpu_times()
    ended = await modelled_s(client)
    if load.failures():
        raise SystemExit(f"a request failed: {load.failures()[0].error}")
    spent_s = after.user + after.system - before.user - before.system
    seen_s = sum(result.end - result.start for result in load.results) / len(load.results)
    model_s = (ended[0] - begun[0]) / (ended[1] - begun[1])
    return 1e6 * spent_s / (len(load.results) * TOKENS), seen_s / model_s


async def modelled_s(client: InferenceClient) -> tuple[float, float]:
    """Return sum and count of the request times that the engine model has given so far."""
    page = (await client.page("/metrics")).text
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    name = "vllm:e2e_request_latency_seconds"
    return found[f"{name}_sum"], found[f"{name}_count"]


class RawStream(asyncio.Protocol):
    """A client that only counts bytes, so that thousands of them leave the core to the server."""

    def __init__(self, number: int) -> None:
        fields = {
            "prompt": f"Stream {number}.",
            "max_tokens": MANY_TOKENS,
            "stream": True,
            "ignore_eos": True,
        }
        body = json.dumps(fields).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: sim\r\nConnection: close\r\nContent-Length:"
        self._request = f"{head} {len(body)}\r\n\r\n".encode() + body
        self._tail = b""
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    @override
    def data_received(self, data: bytes) -> None:
        """Keep the end, which says whether the answer is whole."""
        self._tail = (self._tail + data)[-40:]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Note whether the answer was whole."""
        if not self.ended.done():
            self.ended.set_result(b"[DONE]" in self._tail)


async def many_streams_round(process: psutil.Process, port: int) -> float:
    """Return microseconds of the server's CPU per token with MANY streams in flight."""
    loop = asyncio.get_running_loop()
    before = process.cpu_times()
    streams = [RawStream(number) for number in range(MANY)]
    for stream in streams:
        await loop.create_connection(lambda stream=stream: stream, HOST, port)  # type: ignore[misc]
    whole = await asyncio.gather(*(stream.ended for stream in streams))
    if not all(whole):
        raise SystemExit(f"{whole.count(False)} of {MANY} streams broke off")
    after = process.cpu_times()
    spent_s = after.user + after.system - before.user - before.system
    return 1e6 * spent_s / (MANY * MANY_TOKENS)


async def many_streams() -> list[float]:
    """Run a server with room for MANY sequences, whose iterations take 0.2 s, round after round."""
    flags = ["--max-num-seqs", str(MANY), "--iteration-s", "0.2", "--num-gpu-blocks", "200000"]
    command = [sys.executable, "-m", "model_server_sim", "--host", HOST, "--log-level", "error", *flags]
    process = subprocess.Popen(command)  # noqa: ASYNC220 (nothing else runs yet)
    try:
        async with InferenceClient(f"http://{HOST}:8000") as client, asyncio.timeout(20):
            while not (await client.models()).ok:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
        return [await many_streams_round(psutil.Process(process.pid), 8000) for _ in range(3)]
    finally:
        process.kill()
        process.wait()


def jump_round(seed: int) -> float:
    """Return microseconds per request of 512 + 200 tokens, 10 a second, that an engine takes in jumps."""
    rng = random.Random(seed)
    engine = Engine(EngineParams(), rng.random)
    arrivals, now = [], 0.0
    for index in range(1000):
        now += rng.expovariate(10)
        hashes = tuple(range(index % 40 * 100, index % 40 * 100 + 16)) + tuple(
            range(10**6 + index * 100, 10**6 + index * 100 + 16)
        )
        request = Request(
            request_id=str(index),
            prompt_tokens=512,
            output_tokens=rng.randrange(100, 300),
            block_hashes=hashes,
        )
        arrivals.append((now, request))
    start, due = time.process_time(), None
    for at, request in arrivals:
        while due is not None and due < at:
            due = engine.advance(due).next_due
        engine.advance(at)
        engine.submit(request, at)
        due = engine.advance(at).next_due
    engine.advance(1e9)
    return 1e6 * (time.process_time() - start) / len(arrivals)


async def live() -> list[tuple[float, float]]:
    """Run the server and load it, round after round."""
    command = [sys.executable, "-m", "model_server_sim", "--host", HOST, "--log-level", "error"]
    process = subprocess.Popen(command)  # noqa: ASYNC220 (nothing else runs yet)
    try:
        async with InferenceClient(f"http://{HOST}:8000") as client:
            async with asyncio.timeout(20):
                while not (await client.models()).ok:  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(0.05)
            return [await live_round(client, psutil.Process(process.pid)) for _ in range(ROUNDS)]
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Print all figures."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * MANY, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    bare = [engine_round(seed) for seed in range(ROUNDS)]
    report("simulator-engine-cpu-per-token", [r[0] for r in bare], "us", 6.0)
    report("simulator-metrics-page-cpu", [r[1] for r in bare], "us", 1000.0)
    report("simulator-metrics-page-distance-from-51-kb", [abs(r[2] / 51_000 - 1) for r in bare], "ratio", 0.1)
    report("simulator-engine-jump-cpu-per-request", [jump_round(seed) for seed in range(ROUNDS)], "us", 80.0)
    report(f"simulator-cpu-per-token-{MANY}-streams", asyncio.run(many_streams()), "us", 40.0)
    served = asyncio.run(live())
    report("simulator-server-cpu-per-token", [r[0] for r in served], "us", 60.0)
    report("simulator-live-over-modelled-request-time", [r[1] for r in served], "ratio", 1.25)


if __name__ == "__main__":
    main()
