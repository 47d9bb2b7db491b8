"""Prefill and decode on different servers: Envoy, a picker process, simulated servers of each role."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
- {type: decode-filter}
- {type: prefill-filter}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: encode-filter}
- {type: always-disagg-multimodal-decider}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 256}}
- type: disagg-profile-handler
  parameters:
    deciders: {prefill: prefix-based-pd-decider, encode: always-disagg-multimodal-decider}
schedulingProfiles:
- {name: encode, plugins: [{pluginRef: encode-filter}]}
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: queue-scorer}
  - {pluginRef: prefix-cache-scorer, weight: 3}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: queue-scorer}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""
#: As the operator's proxy retries.
RETRIES = {
    "retry_on": "connect-failure,refused-stream,reset-before-request",
    "num_retries": 2,
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/"
                "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            },
        }
    ],
    "host_selection_retry_max_attempts": 3,
    "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
}
LIMIT_S = "1"


class Pool:
    """Two prefill, two decode and one encode server behind a picker and Envoy."""

    def __init__(self) -> None:
        self.url = self.picker = ""
        self.prefill: list[Simulator] = []
        self.decode: list[Simulator] = []
        self.encode: list[Simulator] = []
        self.client: aiohttp.ClientSession

    async def ask(
        self, number: int, headers: Mapping[str, str] = {}, *, tokens: int = 1000, output: int = 4
    ) -> tuple[int, dict[str, str], str]:
        text = f"{number:08}" * (tokens // 2)
        body = {"model": "m", "prompt": text, "max_tokens": output, "stream": output > 4, "ignore_eos": True}
        async with self.client.post(f"{self.url}/v1/completions", json=body, headers=headers) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            return response.status, found, await response.text()

    async def page(self, path: str) -> str:
        async with self.client.get(self.picker + path) as response:
            return await response.text()

    async def load(self) -> dict[str, tuple[int, int, int]]:
        """Return by endpoint its requests, prefill tokens and decode tokens in flight; zeros left out."""
        rows = json.loads(await self.page("/debug/state"))["router"]["endpoints"]
        counts = {
            row["endpoint"]: (
                row["inFlightRequests"],
                row["inFlightTokens"] - row["decodeTokens"],
                row["decodeTokens"],
            )
            for row in rows
        }
        return {name: each for name, each in counts.items() if any(each)}

    async def until_load(self, accept: Callable[[dict[str, tuple[int, int, int]]], bool]) -> None:
        async def probe() -> bool:
            return accept(await self.load())

        await eventually(probe)

    async def until_contact(self, server: Simulator, label: str) -> None:
        async def probe() -> bool:
            rows = json.loads(await self.page("/debug/state"))["router"]["endpoints"]
            return any(row["endpoint"] == hostport(server) and row["contact"] == label for row in rows)

        await eventually(probe)

    async def until_idle(self) -> None:
        await self.until_load(lambda load: not load)

    async def fault(self, server: Simulator, **fault: Any) -> None:
        async with self.client.patch(f"{server.url}/sim/faults", json=fault) as response:
            assert response.status == 200

    async def decisions(self) -> dict[str, float]:
        page = await self.page("/metrics")
        found = {}
        for line in page.splitlines():
            if line.startswith("llm_d_epp_disagg_decision_total{"):
                found[line.partition('decision_type="')[2].partition('"')[0]] = float(line.rpartition(" ")[2])
        return found


def hostport(server: Simulator) -> str:
    return f"{server.host}:8000"


async def killed(server: Simulator) -> None:
    server.process.kill()
    await server.process.wait()


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        made = Pool()
        made.client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        entries = []
        flags = ("--admin", "--model", "m", "--time-scale", "10", "--prefill-limit-s", LIMIT_S)
        pools = (("prefill", made.prefill, 2), ("decode", made.decode, 2), ("encode", made.encode, 1))
        for role, servers, count in pools:
            for number in range(count):
                server = await spawn(*flags, "--role", role, host=new_host())
                stack.push_async_callback(_ended, server)
                servers.append(server)
                labels = {"llm-d.ai/role": role}
                entries.append(
                    {"name": f"{role}-{number}", "address": server.host, "port": 8000, "labels": labels}
                )
        for server in (*made.prefill, *made.decode, *made.encode):
            await server.until_health(200)
        (tmp_path / "endpoints.json").write_text(json.dumps({"endpoints": entries}))
        (tmp_path / "config.yaml").write_text(CONFIG)
        host = new_host()
        ports = [envoy_proxy.free_port(host) for _ in range(3)]
        names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "endpoint_picker.main", "--pool-name", "p", "--bind-address", host),
            *(text for name, port in zip(names, ports, strict=True) for text in (name, str(port))),
            *("--no-secure-serving", "--drain-timeout", "1s", "--log-level", "warning"),
            *("--endpoints-file", str(tmp_path / "endpoints.json")),
            *("--config-file", str(tmp_path / "config.yaml")),
        )
        stack.push_async_callback(_stopped, process)
        made.picker = f"http://{host}:{ports[2]}"
        await eventually(_scraped(made))
        port, admin = envoy_proxy.free_port(), envoy_proxy.free_port()
        config = envoy_proxy.configuration(port, f"{host}:{ports[0]}", tls=False, admin_port=admin)
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        (host_entry,) = manager["route_config"]["virtual_hosts"]
        host_entry["routes"][0]["route"]["retry_policy"] = RETRIES
        (limits,) = config["static_resources"]["clusters"][0]["circuit_breakers"]["thresholds"]
        limits["max_retries"] = 4096
        made.url = await stack.enter_async_context(
            envoy_proxy.started(config, tmp_path / "envoy.log", port, admin)
        )
        yield made


def _scraped(pool: Pool) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        try:
            rows = json.loads(await pool.page("/debug/state"))["router"]["endpoints"]
        except aiohttp.ClientConnectionError:
            return False
        return len(rows) == 5 and all(row["contact"] == "answers" for row in rows)

    return probe


async def _ended(server: Simulator) -> None:
    if server.process.returncode is None:
        server.process.kill()
    await server.process.communicate()


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def test_prompts_are_computed_on_prefill_servers_and_answered_by_decode_servers(pool: Pool) -> None:
    answers = await asyncio.gather(*(pool.ask(number) for number in range(40)))
    assert {status for status, *_ in answers} == {200}
    decode, prefill = {hostport(each) for each in pool.decode}, {hostport(each) for each in pool.prefill}
    assert {headers["x-sim-server"] for _, headers, _ in answers} == decode
    assert {headers["x-sim-prefilled-by"] for _, headers, _ in answers} == prefill
    await pool.until_idle()
    # What is cached where it is decoded needs no other server; a short prompt never does.
    status, headers, _ = await pool.ask(0)
    assert status == 200
    assert "x-sim-prefilled-by" not in headers
    assert "x-sim-prefilled-by" not in (await pool.ask(77, tokens=100))[1]
    await pool.until_idle()
    assert await pool.decisions() == {"prefill-decode": 40, "decode-only": 2}


async def test_a_clients_own_headers_do_not_reach_a_server(pool: Pool) -> None:
    sent = {"x-prefiller-host-port": "127.0.0.1:1", "x-encoder-hosts-ports": "127.0.0.1:1"}
    status, headers, _ = await pool.ask(1, sent)
    assert (status, headers["x-sim-prefilled-by"] in map(hostport, pool.prefill)) == (200, True)
    status, headers, _ = await pool.ask(2, sent, tokens=100)
    assert status == 200
    assert "x-sim-prefill-fallback" not in headers


async def test_each_stage_is_held_as_long_as_it_takes(pool: Pool) -> None:
    for server in pool.prefill:
        await pool.fault(server, hang="engine")
    asking = asyncio.create_task(pool.ask(3, output=2000))
    decode, prefill = set(map(hostport, pool.decode)), set(map(hostport, pool.prefill))

    def both(load: dict[str, tuple[int, int, int]]) -> bool:
        return {name in decode: each for name, each in load.items()} == {
            True: (1, 0, 1000),
            False: (1, 1000, 0),
        }

    await pool.until_load(both)
    assert prefill & set(await pool.load())
    for server in pool.prefill:
        await pool.fault(server, hang="no")
    # After the first token only the decode server's part is left.
    await pool.until_load(lambda load: len(load) == 1 and set(load) <= decode)
    assert list((await pool.load()).values()) == [(1, 0, 1000)]
    asking.cancel()
    await pool.until_idle()


async def test_a_client_that_hangs_up_gives_both_stages_back(pool: Pool) -> None:
    for server in pool.prefill:
        await pool.fault(server, hang="engine")
    asking = [asyncio.create_task(pool.ask(number)) for number in range(6)]
    await pool.until_load(lambda load: sum(each[0] for each in load.values()) == 12)
    for each in asking:
        each.cancel()
    await pool.until_idle()


async def test_a_dead_prefill_server_fails_no_request_and_is_soon_left_out(pool: Pool) -> None:
    dead, alive = pool.prefill
    await killed(dead)
    answers = await asyncio.gather(*(pool.ask(number) for number in range(20)))
    assert {status for status, *_ in answers} == {200}

    await pool.until_contact(dead, "refused")
    for number in range(20):
        assert (await pool.ask(500 + number))[1]["x-sim-prefilled-by"] == hostport(alive)
    await killed(alive)
    await pool.until_contact(alive, "refused")
    headers = (await pool.ask(900))[1]
    assert "x-sim-prefilled-by" not in headers
    assert "x-sim-prefill-fallback" not in headers
    assert 'disagg_stages_dropped_total{plugin_type="disagg-profile-handler",stage="prefill"}' in (
        await pool.page("/metrics")
    )
    await pool.until_idle()


async def test_a_prefill_server_that_hangs_costs_its_limit_and_is_soon_left_out(pool: Pool) -> None:
    hung, alive = pool.prefill
    await pool.fault(hung, hang="server")
    answers = await asyncio.gather(*(pool.ask(number) for number in range(20)))
    assert {status for status, *_ in answers} == {200}
    fell_back = [headers for _, headers, _ in answers if "x-sim-prefill-fallback" in headers]
    assert {each["x-sim-prefill-fallback"] for each in fell_back} == {"timeout"}
    await pool.until_contact(hung, "silent")
    for number in range(20):
        assert (await pool.ask(500 + number))[1]["x-sim-prefilled-by"] == hostport(alive)
    await pool.until_idle()


async def test_a_dead_decode_server_is_passed_over_and_holds_nothing(pool: Pool) -> None:
    dead, alive = pool.decode
    asking = [asyncio.create_task(pool.ask(number, output=3000)) for number in range(8)]
    prefill = set(map(hostport, pool.prefill))
    await pool.until_load(lambda load: hostport(dead) in load and not prefill & set(load))
    await killed(dead)
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert any(isinstance(end, aiohttp.ClientError) for end in ends), "its streams break"
    assert any(isinstance(end, tuple) and end[0] == 200 for end in ends), "the other's go on"
    answers = await asyncio.gather(*(pool.ask(100 + number) for number in range(20)))
    assert {(status, headers["x-sim-server"]) for status, headers, _ in answers} == {(200, hostport(alive))}
    await pool.until_idle()


async def test_conditional_decode_needs_the_prompt_in_a_cache(pool: Pool) -> None:
    status, _, text = await pool.ask(9, {"prefer": "if-available"})
    assert (status, json.loads(text)["error"]["message"]) == (
        412,
        "no decode worker has the requested KV cache",
    )
    assert (await pool.ask(9))[0] == 200
    assert (await pool.ask(9, {"prefer": "if-available"}))[0] == 200
    await pool.until_idle()


async def test_an_explanation_shows_both_stages(pool: Pool) -> None:
    await pool.ask(11, {"x-request-id": "r-11"})
    (found,) = json.loads(await pool.page("/debug/explain?request_id=r-11"))["decisions"]
    stages = {each["stage"]: each["picked"] for each in found["profiles"]}
    assert stages["decode"] in map(hostport, pool.decode)
    assert stages["prefill"] in map(hostport, pool.prefill)


async def test_an_image_goes_through_the_encode_server_and_all_three_stages_end(pool: Pool) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://images.test/cat"}}
    content = [{"type": "text", "text": "what is this? " * 200}, image]
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
    async with pool.client.post(f"{pool.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["x-sim-encoded-by"] == hostport(pool.encode[0])
        assert response.headers["x-sim-prefilled-by"] in map(hostport, pool.prefill)
        await response.read()
    await pool.until_idle()
    assert await pool.decisions() == {"encode-prefill-decode": 1}
