"""Ten minutes of a picker under churn: endpoints come and go, clients drop, reloads, scrape faults.

The picker is the real one in a process of its own, behind the real Envoy, with six model servers. Held to:

- its memory is flat: over the second half it moves by at most 2 %;
- the ledger equals a recount of the decisions that have not ended, every second, and is empty at the end;
- every request that its client waits for is served;
- no error is logged but the refusal of the configuration that is faulty.

`make test-soak` takes eleven minutes and about one core. SOAK_SECONDS=60 in the environment shortens it; the
memory is not checked then.
"""

import asyncio
import hashlib
import json
import os
import random
import signal
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import yaml
from aiohttp import web

import envoy_proxy
import soak_picker

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
#: Shortest soak whose memory says something: the prefix index and numpy's arrays have their size by then.
MEMORY_FROM_S = 300
CLIENTS = 12
SERVERS = 6
RELOAD_S = 7.0
#: Different beginnings of prompts; the prefix index knows them all before the second half begins.
PROMPTS = 200
#: Largest relative move of the picker's memory over the second half.
MOVE = 0.02
#: The one error that is asked for: the third configuration is faulty.
EXPECTED_ERROR = "configuration refused"

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 180)]


class Server:
    """A model server that streams, and whose metrics page fails in all the ways that pages fail."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.port = 0
        self._rng = rng
        self._running = 0
        self.faults: Counter[str] = Counter()

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        kind = self._rng.choices(
            ("page", "error", "hang", "garbage", "close", "large"), weights=(90, 3, 0.3, 3, 3, 0.7)
        )[0]
        self.faults[kind] += 1
        if kind == "error":
            return web.Response(status=500)
        if kind == "hang":
            await asyncio.sleep(3)
        if kind == "garbage":
            return web.Response(body=self._rng.randbytes(3000))
        if kind == "close":
            assert request.transport is not None
            request.transport.abort()
        adapters = f'max_lora="4",running_lora_adapters="a{self._rng.randrange(9)}",waiting_lora_adapters=""'
        lines = [
            f"vllm:num_requests_waiting {self._rng.randrange(4)}",
            f"vllm:num_requests_running {self._running}",
            f"vllm:kv_cache_usage_perc {self._rng.random():.3f}",
            f"vllm:lora_requests_info{{{adapters}}} {asyncio.get_running_loop().time()}",
        ]
        filler = "# filler\n" * 20_000 if kind == "large" else ""
        return web.Response(text=filler + "\n".join(lines) + "\n")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self._running += 1
        try:
            body = await request.read()
            usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 8}
            if b'"stream": true' not in body:
                await asyncio.sleep(self._rng.random() * 0.1)
                return web.json_response({"choices": [], "usage": usage})
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for _ in range(8):
                await response.write(b'data: {"choices": [{"text": "word"}]}\n\n')
                await asyncio.sleep(self._rng.random() * 0.05)
            await response.write(b"data: " + json.dumps({"usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
            await response.write_eof()
            return response
        finally:
            self._running -= 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Server"]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/completions", self.complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()


class Soak:
    """The picker, Envoy, servers and clients, and what they saw."""

    def __init__(self, directory: Path) -> None:
        self.rng = random.Random(1)
        self.directory = directory
        self.endpoints = directory / "endpoints.yaml"
        self.report = directory / "report.jsonl"
        self.log = directory / "picker.log"
        self.servers: list[Server] = []
        self.answers: Counter[str] = Counter()
        self.memory: list[int] = []
        self.url = ""
        self._prompts = [hashlib.sha256(str(n).encode()).hexdigest() * 40 for n in range(PROMPTS)]

    def offer(self, servers: list[Server]) -> None:
        listed = [{"name": each.name, "address": "127.0.0.1", "port": each.port} for each in servers]
        new = self.endpoints.with_suffix(".new")
        new.write_text(yaml.safe_dump({"endpoints": listed}))
        new.replace(self.endpoints)

    async def churn(self) -> None:
        """Let endpoints leave and return; at least two stay."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.3, 3))
            self.offer(self.rng.sample(self.servers, self.rng.randint(2, SERVERS)))

    async def client(self) -> None:
        """Send requests; leave every sixth before it is answered, or within its stream."""
        connector = aiohttp.TCPConnector(limit=1)
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                await asyncio.sleep(self.rng.random() * 0.05)
                with suppress(TimeoutError):
                    await self._one(session)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        prompt = self.rng.choice(self._prompts) + str(self.rng.random())
        stream = self.rng.random() < 0.7
        body = json.dumps({"model": f"a{self.rng.randrange(12)}", "prompt": prompt, "stream": stream})
        headers = {"content-type": "application/json"}
        leaves = self.rng.random()
        async with asyncio.timeout(self.rng.random() * 0.05 if leaves < 0.08 else None):
            async with session.post(f"{self.url}/v1/completions", data=body, headers=headers) as response:
                if response.status != 200:
                    self.answers[f"{response.status} {(await response.text())[:80]}"] += 1
                    return
                if leaves > 0.92:
                    await response.content.readany()
                    response.close()
                    self.answers["left"] += 1
                    return
                await response.read()
                self.answers["served"] += 1

    async def watch_memory(self, process: psutil.Process) -> None:
        while True:
            await asyncio.sleep(1)
            self.memory.append(process.memory_info().rss)

    def errors(self) -> list[str]:
        """Return the error lines of the picker's log, and whatever is no JSON, without the expected error."""
        found = []
        for line in self.log.read_text().splitlines():
            try:
                entry: dict[str, Any] = json.loads(line)
            except ValueError:
                found.append(line)
                continue
            if entry["level"] in ("ERROR", "CRITICAL") and not entry["message"].startswith(EXPECTED_ERROR):
                found.append(line)
        return found

    def recounts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.report.read_text().splitlines()]


async def started(soak: Soak, stack: AsyncExitStack) -> asyncio.subprocess.Process:
    """Start servers, the picker and Envoy."""
    for n in range(SERVERS):
        server = Server(f"s{n}", soak.rng)
        soak.servers.append(await stack.enter_async_context(server.serving()))
    soak.offer(soak.servers)
    ports = [envoy_proxy.free_port() for _ in range(3)]
    names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
    flags = [part for name, port in zip(names, ports, strict=True) for part in (name, str(port))]
    flags += ["--bind-address", "127.0.0.1", "--no-secure-serving", "--endpoints-file", str(soak.endpoints)]
    command = (sys.executable, str(soak_picker.__file__), str(soak.report), str(RELOAD_S), *flags)
    with soak.log.open("wb") as log:
        picker = await asyncio.create_subprocess_exec(*command, stderr=log)
    stack.callback(lambda: picker.kill() if picker.returncode is None else None)
    proxy = envoy_proxy.running(f"127.0.0.1:{ports[0]}", soak.directory / "envoy.log")
    soak.url = await stack.enter_async_context(proxy)
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.post(f"{soak.url}/v1/completions", json={"model": "m"}) as response:
                    if response.status == 200:
                        return picker
            await asyncio.sleep(0.1)


async def test_a_picker_under_churn_stays_as_it_was(tmp_path: Path) -> None:
    soak = Soak(tmp_path)
    async with AsyncExitStack() as stack:
        picker = await started(soak, stack)
        tasks = [
            asyncio.create_task(each)
            for each in (
                soak.churn(),
                soak.watch_memory(psutil.Process(picker.pid)),
                *(soak.client() for _ in range(CLIENTS)),
            )
        ]
        done, _ = await asyncio.wait(tasks, timeout=SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        seen = len(soak.recounts())
        async with asyncio.timeout(30):
            # The next recount that begins after the last client has left.
            while len(soak.recounts()) < seen + 3:  # noqa: ASYNC110 - another process writes the file
                await asyncio.sleep(0.2)
        picker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await picker.wait() == 0

    report(soak)
    assert soak.errors() == []
    assert set(soak.answers) == {"served", "left"}, soak.answers
    assert soak.answers["served"] > SECONDS
    recounts = soak.recounts()
    assert len(recounts) > SECONDS / 3
    assert max(each["recount"] for each in recounts) > 1
    for each in recounts:
        assert each["held"] == each["recount"], each
        assert each["requests"] == each["recountedRequests"], each
        assert each["tokens"] == each["recountedTokens"], each
    assert recounts[-1] | {"held": 0, "away": 0, "requests": [], "tokens": []} == recounts[-1]
    if SECONDS >= MEMORY_FROM_S:
        assert abs(move(soak.memory)) <= MOVE


def move(memory: list[int]) -> float:
    """Return how much the memory moves over the second half: its last fifth against its first, by medians."""
    half = memory[len(memory) // 2 :]
    fifth = max(1, len(half) // 5)
    first, last = statistics.median(half[:fifth]), statistics.median(half[-fifth:])
    return (last - first) / first


def report(soak: Soak) -> None:
    """Print the figures; pytest shows them with -s and on failure."""
    faults = sum((each.faults for each in soak.servers), Counter[str]())
    quarters = [
        round(soak.memory[at] / 1e6, 1) for at in range(0, len(soak.memory), max(1, len(soak.memory) // 8))
    ]
    print(f"answers {dict(soak.answers)}")
    print(f"scrapes {dict(faults)}")
    print(f"recounts {len(soak.recounts())}, most held {max(each['held'] for each in soak.recounts())}")
    print(f"memory in MB, in eighths {quarters}; second half moves by {move(soak.memory):+.2%}")
