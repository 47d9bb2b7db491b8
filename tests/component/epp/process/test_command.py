"""`headroom-epp` as a process: start, ports, endpoints from a file, drain, failures."""

import asyncio
import json
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from envoy.config.endpoint.v3 import endpoint_pb2 as _endpoint
from envoy.service.discovery.v3 import discovery_pb2 as _discovery
from grpc_health.v1 import health_pb2 as _health

import envoy_messages as wire
from endpoint_picker.eds import STREAM_METHOD, TYPE_URL
from ext_proc.handler import PROCESS_METHOD
from inference_api.offered import Offered, Uses, text_mark

endpoint_pb2: Any = _endpoint
discovery_pb2: Any = _discovery
health_pb2: Any = _health

HOST = "127.0.93.1"


class Process:
    """A running picker and the ports it was given."""

    def __init__(self, process: asyncio.subprocess.Process, ports: list[int], log: Path) -> None:
        self.process = process
        self.grpc, self.health, self.metrics = ports
        self._log = log

    async def get(self, path: str) -> tuple[int, str]:
        try:
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{HOST}:{self.metrics}{path}") as response:
                    return response.status, await response.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def until(self, path: str, status: int) -> None:
        async with asyncio.timeout(30):
            while (await self.get(path))[0] != status:
                assert self.process.returncode is None, self.log()
                await asyncio.sleep(0.05)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@asynccontextmanager
async def picker(folder: Path, *flags: str) -> AsyncIterator[Process]:
    ports = free_ports(3)
    names = ("--grpc-port", "--grpc-health-port", "--metrics-port")
    given = [text for name, port in zip(names, ports, strict=True) for text in (name, str(port))]
    log = folder / "picker.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "endpoint_picker.main", "--pool-name", "p", "--bind-address", HOST),
            *(*given, "--drain-timeout", "1s", *flags),
            stderr=output,
        )
    try:
        yield Process(process, ports, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def write_endpoints(folder: Path, *ports: int) -> Path:
    entries = [{"name": f"s{port}", "address": "127.0.93.9", "port": port} for port in ports]
    fresh, file = folder / "endpoints.new", folder / "endpoints.json"
    fresh.write_text(json.dumps({"endpoints": entries}))
    fresh.rename(file)
    return file


async def exchange(channel: grpc.aio.Channel) -> Any:
    call: Any = channel.stream_stream(PROCESS_METHOD)()
    await call.write(wire.request_headers())
    await call.write(wire.request_body(wire.body_of(), end=True))
    return call, wire.read([await call.read(), await call.read()])


async def health(port: int, service: str) -> int:
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = await call(health_pb2.HealthCheckRequest(service=service).SerializeToString())
    return int(health_pb2.HealthCheckResponse.FromString(answer).status)


async def test_it_picks_follows_its_file_and_drains(tmp_path: Path) -> None:
    file = write_endpoints(tmp_path, 8001)
    async with picker(tmp_path, "--endpoints-file", str(file), "--no-secure-serving") as process:
        await process.until("/readyz", 200)
        for port in (process.health, process.grpc):
            assert await health(port, "inference-extension") == 1
        async with grpc.aio.insecure_channel(f"{HOST}:{process.grpc}") as channel:
            call, (head, body) = await exchange(channel)
            assert wire.set_headers(head)["x-gateway-destination-endpoint"] == "127.0.93.9:8001"
            assert body.request_body.response.body_mutation.streamed_response.end_of_stream

            eds: Any = channel.stream_stream(STREAM_METHOD)()
            await eds.write(
                discovery_pb2.DiscoveryRequest(type_url=TYPE_URL, resource_names=["pool"]).SerializeToString()
            )
            assert ports_of(await eds.read()) == [8001]
            write_endpoints(tmp_path, 8002, 8003)
            assert ports_of(await eds.read()) == [8002, 8003]
            write_endpoints(tmp_path)
            assert ports_of(await eds.read()) == []
            write_endpoints(tmp_path, 8004)
            assert ports_of(await eds.read()) == [8004]

            watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
            states = watch(health_pb2.HealthCheckRequest(service="readiness").SerializeToString())
            assert await states.read() == b"\x08\x01"

            state = json.loads((await process.get("/debug/state"))[1])
            assert state["openExchanges"] == 1
            explained, _ = await exchange(channel)
            (newest,) = json.loads((await process.get("/debug/explain?limit=1"))[1])["decisions"]
            assert newest["endpoint"] == "127.0.93.9:8004"
            request_id = newest["requestId"]
            page = json.loads((await process.get(f"/debug/explain?request_id={request_id}"))[1])
            (scored,) = page["decisions"][0]["profiles"][0]["scored"]
            assert set(scored["scores"]) >= {"queue-scorer", "prefix-cache-scorer"}
            status, text = await process.get("/debug/explain?request_id=unknown")
            assert (status, json.loads(text)["decisions"]) == (200, [])
            assert "no decision on request unknown is kept" in json.loads(text)["note"]
            status, text = await process.get("/debug/explain?limit=none")
            assert (status, json.loads(text)["error"]) == (400, "limit is a number from 1 to 500")
            explained.cancel()
            process.process.send_signal(signal.SIGTERM)
            assert await states.read() == b"\x08\x02"
            assert await health(process.health, "readiness") == 2
            assert await health(process.health, "liveness") == 1
            other, _ = await exchange(channel)
            await call.write(wire.response_headers())
            assert wire.kinds([await call.read()]) == ["response_headers"]
            other.cancel()
            call.cancel()
        async with asyncio.timeout(20):
            assert await process.process.wait() == 0
        messages = [line["message"] for line in process.log()]
        assert messages[0] == "starting"
        assert messages[-2:] == ["draining", "stopped"]
        assert len(messages) < 12


def ports_of(payload: bytes) -> list[int]:
    (resource,) = discovery_pb2.DiscoveryResponse.FromString(payload).resources
    assignment = endpoint_pb2.ClusterLoadAssignment.FromString(resource.value)
    return [
        entry.endpoint.address.socket_address.port_value
        for locality in assignment.endpoints
        for entry in locality.lb_endpoints
    ]


async def test_it_serves_tls_with_h2_by_default(tmp_path: Path) -> None:
    file = write_endpoints(tmp_path, 8001)
    async with picker(tmp_path, "--endpoints-file", str(file)) as process:
        await process.until("/readyz", 200)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection(HOST, process.grpc, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.transport.abort()


async def test_a_start_with_a_refused_configuration_says_that_the_default_is_in_use(tmp_path: Path) -> None:
    text = "plugins: [{type: no-such-scorer}]"
    (tmp_path / "config.yaml").write_text(text)
    files = (
        "--endpoints-file",
        str(write_endpoints(tmp_path)),
        "--config-file",
        str(tmp_path / "config.yaml"),
    )
    async with picker(tmp_path, *files) as process:
        await process.until("/readyz", 200)
        told = Offered.model_validate_json((await process.get("/debug/config"))[1])
        assert (told.config.mark, told.config.uses) == (text_mark(text), Uses.DEFAULT)
        assert "no-such-scorer" in told.config.error
        (line,) = [entry for entry in process.log() if "refused" in entry["message"]]
        assert line["message"] == "configuration refused, the default is in use"
        assert "no-such-scorer" in line["reason"]


async def test_until_the_pool_is_known_it_is_alive_not_ready_and_takes_no_requests(tmp_path: Path) -> None:
    async with picker(tmp_path, "--endpoints-file", str(tmp_path / "missing.yaml")) as process:
        await process.until("/healthz", 200)
        assert (await process.get("/readyz"))[0] == 503
        assert await health(process.health, "liveness") == 1
        assert await health(process.health, "readiness") == 2
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, process.grpc)
        process.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.process.wait() == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--endpoints-file", "e.json", "--cert-path", "/nonexistent"], "/nonexistent/tls.crt"),
        (["--endpoints-file", "e.json", "--bind-address", "127.0.93.2", "--grpc-health-port", "0"], ""),
        ([], "--endpoints-file"),
    ],
    ids=["no certificate", "port taken", "not in a cluster"],
)
async def test_what_it_cannot_do_is_one_line_and_status_1(
    tmp_path: Path, flags: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.93.2", 0))
        taken.listen()
        if not sentence:
            flags = [*flags, "--metrics-port", str(taken.getsockname()[1])]
        async with picker(tmp_path, *flags) as process:
            async with asyncio.timeout(30):
                assert await process.process.wait() == 1
            last = process.log()[-1]
            assert last["message"].startswith("cannot run: ")
            assert sentence in last["message"]
            assert "exc_info" not in last


async def test_it_loads_no_grpc_library_and_no_http_framework_that_it_does_not_use() -> None:
    """What a picker loads it pays for at each start and in each pod's memory."""
    script = "import sys, endpoint_picker.main; print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    loaded = {name.partition(".")[0] for name in output.decode().split()}
    assert "lean_grpc" in loaded
    assert not loaded & {"grpc", "grpc_health", "h2", "kopf", "kubernetes", "opentelemetry", "requests"}
