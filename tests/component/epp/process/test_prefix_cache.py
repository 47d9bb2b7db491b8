"""The precise prefix cache as a whole: Envoy, a picker process, simulated servers that publish KV events."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import envoy_proxy
from pool_proxy import eventually
from simulator_process import Simulator, new_host, spawn

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters: {budget: BUDGET}
- type: precise-prefix-cache-producer
  parameters: {kvEventsConfig: {podDiscoveryConfig: {socketPort: 5557, replaySocketPort: 6557}}}
- {type: prefix-cache-scorer}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 1}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer}
  - {pluginRef: max-score-picker}
"""
SERVERS = 3
FAST = ("--time-scale", "20", "--kv-events-port", "5557", "--kv-events-replay-port", "6557", "--model", "m")


class Pool:
    """Three publishing servers behind a picker and Envoy."""

    def __init__(self) -> None:
        self.url = self.picker = ""
        self.servers: list[Simulator] = []
        self.client: aiohttp.ClientSession
        self.requests = 0

    async def chat(self, *texts: str, url: str = "") -> tuple[str, str]:
        """Send a chat; return which server answered, and the request's id."""
        self.requests += 1
        request_id = f"request-{self.requests}"
        messages = [{"role": "user", "content": text} for text in texts]
        body = {"model": "m", "messages": messages, "max_tokens": 2}
        headers = {"x-request-id": request_id}
        async with self.client.post(
            f"{url or self.url}/v1/chat/completions", json=body, headers=headers
        ) as response:
            assert response.status == 200, await response.text()
            return response.headers["x-sim-address"], request_id

    async def source(self, request_id: str) -> dict[str, Any]:
        """Return the picker's explanation of a decision."""
        async with self.client.get(f"{self.picker}/debug/explain?request_id={request_id}") as response:
            decisions: list[dict[str, Any]] = (await response.json())["decisions"]
            return decisions[0]

    async def state(self) -> dict[str, Any]:
        async with self.client.get(f"{self.picker}/debug/state") as response:
            found: dict[str, Any] = (await response.json())["router"]["kvIndex"]
            return found

    async def metric(self, name: str) -> float:
        async with self.client.get(f"{self.picker}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    async def knows_all(self) -> bool:
        """Tell whether every server has told what it holds."""
        try:
            sources = (await self.state())["sources"]
        except aiohttp.ClientConnectionError:
            return False
        return len(sources) == SERVERS and all(each["complete"] for each in sources)

    async def tokenize(self, how: str) -> None:
        """Have all servers answer /tokenize so."""
        for server in self.servers:
            async with self.client.patch(f"{server.url}/sim/faults", json={"tokenize": how}) as response:
                assert response.status == 200, await response.text()


Start = Callable[..., Awaitable[Pool]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:
        yield lambda budget="5s": started(stack, tmp_path, budget)


async def started(stack: AsyncExitStack, folder: Path, budget: str) -> Pool:
    pool = Pool()
    pool.client = await stack.enter_async_context(aiohttp.ClientSession())
    for _ in range(SERVERS):
        server = await spawn(*FAST, "--admin", host=new_host())
        stack.push_async_callback(end, server)
        pool.servers.append(server)
    for server in pool.servers:
        await server.until_health(200)
    listed = folder / "endpoints.yaml"
    listed.write_text(
        json.dumps(
            {
                "endpoints": [
                    {"name": f"p{at}", "address": each.host, "port": "8000"}
                    for at, each in enumerate(pool.servers)
                ]
            }
        )
    )
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("BUDGET", budget))
    host = new_host()
    ports = [envoy_proxy.free_port(host) for _ in range(3)]
    names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "endpoint_picker.main", "--pool-name", "p", "--bind-address", host),
        *(text for name, port in zip(names, ports, strict=True) for text in (name, str(port))),
        *("--no-secure-serving", "--drain-timeout", "1s", "--log-level", "warning"),
        *("--endpoints-file", str(listed), "--config-file", str(config)),
    )
    stack.push_async_callback(stopped, process)
    pool.picker = f"http://{host}:{ports[2]}"
    await eventually(pool.knows_all)
    port, admin = envoy_proxy.free_port(), envoy_proxy.free_port()
    proxy = envoy_proxy.configuration(port, f"{host}:{ports[0]}", tls=False, admin_port=admin)
    pool.url = await stack.enter_async_context(envoy_proxy.started(proxy, folder / "envoy.log", port, admin))
    return pool


async def end(server: Simulator) -> None:
    if server.process.returncode is None:
        server.process.kill()
    await server.process.communicate()


async def stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def test_a_prompt_goes_where_its_beginning_is_held_whoever_sent_it_there(start: Start) -> None:
    pool = await start()
    shared = "The same long beginning of many chats. " * 60
    # A client of another gateway had the second server compute it: this picker never saw the request.
    holder = pool.servers[1]
    await pool.chat(shared, url=holder.url)

    async def told() -> bool:
        return max(int(each["blocks"]) for each in (await pool.state())["sources"]) > 20

    await eventually(told)
    for number in range(6):
        address, request_id = await pool.chat(shared, f"Question {number}")
        assert address == f"{holder.host}:8000"
        explained = await pool.source(request_id)
        assert explained["prefixSource"] == "precise"
        assert explained["prefixHit"] > 0.9
    assert await pool.metric('llm_d_epp_prefix_match_source_total{source="precise"}') >= 6
    assert await pool.metric("llm_d_epp_kv_cache_events_messages_received_total") > 0


async def test_a_dead_tokenizer_costs_one_budget_and_the_approximate_index_answers(start: Start) -> None:
    pool = await start("1s")
    await pool.tokenize("hang")
    text = "Asked about while no server tokenizes. " * 60
    first = ""
    for number in range(8):
        address, request_id = await pool.chat(text, f"{number}")
        explained = await pool.source(request_id)
        assert explained["prefixSource"].startswith("approximate: no tokens")
        assert explained["waited"] == (number == 0)
        first = first or address
        assert address == first  # the approximate index sends the same beginning to the same server
    assert await pool.metric("llm_d_epp_tokenizer_trusted") == 0
    # Once the servers tokenize again, a prompt that does not wait finds out.
    await pool.tokenize("live")

    async def trusted() -> bool:
        await pool.chat(f"probe {pool.requests}")
        return await pool.metric("llm_d_epp_tokenizer_trusted") == 1

    await eventually(trusted)
    _, request_id = await pool.chat(text, "at last")
    assert (await pool.source(request_id))["prefixSource"] == "precise"
