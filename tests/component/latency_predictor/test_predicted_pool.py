"""Everything real: Envoy, picker, trainer, prediction server, two simulated model servers."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

import envoy_proxy
from latency_bundle import published
from latency_predictor.training.paths import STATUS_PATH
from lean_grpc import CallError, Channel
from pool_proxy import eventually
from simulator_process import Simulator, new_host, spawn

CONFIG = """
plugins:
- {type: prediction-profile-handler}
- type: predicted-latency-producer
  parameters: {mode: All, streamingMode: true, holdoutPercent: 0, budgetMs: 300}
- {type: latency-scorer}
- {type: queue-scorer}
schedulingProfiles:
- {name: predicted, plugins: [{pluginRef: latency-scorer}]}
- {name: default, plugins: [{pluginRef: queue-scorer}]}
"""
#: Longest wait for anything, seconds: machines that run tests may be busy.
LIMIT_S = 60.0


class Child:
    """A process of one of the predictor's commands."""

    def __init__(self, module: str, *flags: str) -> None:
        self._command = (sys.executable, "-m", module, *flags)
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(*self._command)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Pool:
    def __init__(self, folder: Path, client: aiohttp.ClientSession) -> None:
        self.client = client
        self.models = folder / "models"
        self.models.mkdir()
        self.trains = f"unix:{folder / 'trainer.sock'}"
        self.predicts = f"unix:{folder / 'predictor.sock'}"
        self.trainer = Child(
            "latency_predictor.training.main",
            *(f"--data={folder / 'samples'}", f"--models={self.models}", f"--listen={self.trains}"),
            *("--http=", "--least-samples=60"),
        )
        self.predictor = Child(
            "latency_predictor.serving.main",
            f"--models={self.models}",
            f"--listen={self.predicts}",
            "--http=",
        )
        self.url = self.picker = ""
        self.number = 0

    async def ask(self, output: int = 4) -> None:
        """Send a request and read its whole answer, a stream."""
        self.number += 1
        async with self.client.post(f"{self.url}/v1/completions", json=self._body(output)) as response:
            text = await response.text()
        assert response.status == 200, text
        assert "[DONE]" in text

    async def abort(self) -> None:
        """Send a request and go away after the answer's first bytes."""
        self.number += 1
        async with self.client.post(f"{self.url}/v1/completions", json=self._body(5000)) as response:
            assert response.status == 200
            await response.content.readany()
            response.close()

    def _body(self, output: int) -> dict[str, Any]:
        words = 20 + self.number % 17 * 50
        return {
            "model": "m",
            "prompt": f"{self.number} " + "word " * words,
            "max_tokens": output,
            "ignore_eos": True,
            "stream": True,
        }

    async def page(self) -> dict[str, Any]:
        """Return what the picker's status page says of prediction."""
        async with self.client.get(f"{self.picker}/debug/state") as response:
            found: dict[str, Any] = (await response.json())["router"]["latencyPrediction"]
        return found

    async def asking_until(self, reason: str, more: int = 1) -> dict[str, Any]:
        """Send requests, a few at a time, until this many more were picked for a reason; return the page."""
        before = (await self.page())["requests"][reason]
        async with asyncio.timeout(LIMIT_S):
            while True:
                await asyncio.gather(*(self.ask() for _ in range(6)))
                page = await self.page()
                if page["requests"][reason] >= before + more:
                    return page

    async def trainer_status(self) -> dict[str, Any]:
        async with Channel(self.trains) as channel:
            answer = await channel.unary(STATUS_PATH, b"", timeout=LIMIT_S, wait_for_ready=True)
        found: dict[str, Any] = json.loads(answer)
        return found

    async def until_received(self, kind: str, count: int) -> None:
        """Wait until the trainer counts so many samples of a kind."""

        async def probe() -> bool:
            try:
                received = (await self.trainer_status())["received"]
            except CallError:
                return False
            return int(received[kind]) >= count

        await eventually(probe, LIMIT_S)


@asynccontextmanager
async def running(folder: Path, *, trains: bool) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession())
        pool = Pool(folder, client)
        servers: list[Simulator] = []
        for _ in range(2):
            servers.append(await spawn("--model", "m", "--time-scale", "4", host=new_host()))
            stack.push_async_callback(_ended, servers[-1].process)
        children = [pool.predictor, *([pool.trainer] if trains else [])]
        for child in children:
            await child.start()
            stack.push_async_callback(child.kill)
        for server in servers:
            await server.until_health(200)
        entries = [{"name": each.host, "address": each.host, "port": 8000} for each in servers]
        (folder / "endpoints.json").write_text(json.dumps({"endpoints": entries}))
        (folder / "config.yaml").write_text(CONFIG)
        host = new_host()
        ports = [envoy_proxy.free_port(host) for _ in range(3)]
        names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
        picker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "endpoint_picker.main", "--pool-name", "p", "--bind-address", host),
            *(text for name, port in zip(names, ports, strict=True) for text in (name, str(port))),
            *("--no-secure-serving", "--drain-timeout", "1s", "--log-level", "warning"),
            *("--endpoints-file", str(folder / "endpoints.json")),
            *("--config-file", str(folder / "config.yaml")),
            *("--predictor", pool.predicts, "--trainer", pool.trains),
        )
        stack.push_async_callback(_ended, picker)
        pool.picker = f"http://{host}:{ports[2]}"

        async def scraped() -> bool:
            try:
                async with client.get(f"{pool.picker}/debug/state") as response:
                    rows = (await response.json())["router"]["endpoints"]
            except aiohttp.ClientConnectionError:
                return False
            return len(rows) == 2 and all(row["contact"] == "answers" for row in rows)

        await eventually(scraped, LIMIT_S)
        log = folder / "envoy.log"
        pool.url = await stack.enter_async_context(envoy_proxy.running(f"{host}:{ports[0]}", log, tls=False))
        yield pool


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def test_a_trainer_learns_from_the_picker_and_its_bundles_come_to_route(tmp_path: Path) -> None:
    async with running(tmp_path, trains=True) as pool:
        page = await pool.asking_until("predicted", 20)
        assert page["version"] in {each.name for each in pool.models.iterdir()}
        assert page["samples"]["sent"] >= 60
        assert page["samples"]["lost"] == 0
        assert page["errors"]["ttft"]["judged"] > 0
        received = (await pool.trainer_status())["received"]
        assert received["rejected"] == 0

        # A request that its client gave up reaches the trainer, and is no label.
        await asyncio.gather(*(pool.abort() for _ in range(3)))
        await pool.until_received("censored", received["censored"] + 3)

        # Without a trainer requests go on being predicted; what is sent meanwhile waits or is lost.
        await pool.trainer.kill()
        await pool.asking_until("predicted", 6)
        await pool.trainer.start()
        await pool.ask()
        await pool.until_received("accepted", 1)


async def test_a_hung_prediction_server_fails_no_request_and_predicts_again_when_it_goes_on(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, trains=False) as pool:
        published(pool.models)
        await pool.asking_until("predicted")
        pool.predictor.process.send_signal(signal.SIGSTOP)
        page = await pool.asking_until("unreachable")
        # Those that found out waited for their budget.
        assert page["requests"]["late"] + page["requests"]["failed"] >= 1
        assert (page["routes"], page["serversAnswering"]) == (False, 0)
        pool.predictor.process.send_signal(signal.SIGCONT)
        await pool.asking_until("predicted")
