"""Pods that echo, a picker for each pool, and one gateway, the real Envoy: for the conformance cases."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import h2.config
import h2.connection
import h2.events
from aiohttp import web
from typing_extensions import override

import envoy_proxy
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.observability.metrics import PoolFigures
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.servers import PickerServers
from endpoint_picker.settings import parse

#: The configuration that the suite gave its picker before it had one of its own.
CONFIG = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
schedulingProfiles:
- name: conformance-profile
  plugins:
  - pluginRef: header-based-testing-filter
"""
STEER = "test-epp-endpoint-selection"
SERVED = "x-conformance-test-served-endpoint"
BODY = json.dumps({"model": "conformance-fake-model", "prompt": "Write as if you were a critic"}).encode()
_PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


#: Envoy gives a request's body to the picker before it knows whether the picker is there, and cannot go on
#: without it then. Only a picker that is known to be gone is passed over.
_WITHOUT_DEAD_PICKERS = {
    "health_checks": [
        {
            "timeout": "0.5s",
            "interval": "0.1s",
            "unhealthy_threshold": 1,
            "healthy_threshold": 1,
            "grpc_health_check": {},
        }
    ],
    "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
}


@dataclass
class Pod:
    """A pod with an address of its own on loopback; it echoes on each of its ports."""

    name: str
    address: str


@dataclass
class TestPool:
    """A pool, its pods, its ports and its picker."""

    name: str
    pods: list[Pod]
    ports: list[int]
    router: PoolRouter
    picker: PickerServers
    http2: bool = False
    fail_open: bool = False


@dataclass
class Answer:
    """What a client sees."""

    status: int
    echo: dict[str, Any] = field(default_factory=dict)
    served: str = ""

    @property
    def pod(self) -> str:
        return str(self.echo.get("pod", ""))

    @property
    def hostport(self) -> str:
        """The address and the port that echoed."""
        return f"{self.echo.get('address')}:{self.echo.get('httpPort')}"


class ConformanceStage:
    """Start pools, then the gateway with routes to them."""

    def __init__(self, stack: AsyncExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self._addresses = 0
        self.pools: dict[str, TestPool] = {}
        self.client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        stack.push_async_callback(self.client.close)
        self.url = ""

    async def pool(
        self,
        name: str,
        *,
        ports: int = 1,
        http2: bool = False,
        fail_open: bool = False,
        pods: Sequence[Pod] = (),
    ) -> TestPool:
        """Start three pods (or take these) and a picker of their pool."""
        chosen = list(pods) or [self._new_pod(f"{name}-{n}") for n in range(3)]
        numbers = [envoy_proxy.free_port("127.0.0.1") for _ in range(ports)]
        for pod in chosen:
            for number in numbers:
                server = echoing_http2(pod, number) if http2 else echoing(pod, number)
                await self._stack.enter_async_context(server)
        router = build_router(config_text=CONFIG)
        assert not router.config_error, router.config_error
        flags = ["--pool-name", name, "--bind-address", "127.0.0.1", "--grpc-port", "0"]
        flags += ["--grpc-health-port", "0", "--metrics-port", "0"]
        picker = PickerServers(parse(flags), router, lambda: PoolFigures(0))
        await picker.start()
        self._stack.push_async_callback(picker.stop)
        router.replace_endpoints(
            Endpoint(f"{pod.name}-rank-{rank}", "default", pod.address, number)
            for pod in chosen
            for rank, number in enumerate(numbers)
        )
        picker.pool_synced()
        await picker.serve()
        made = TestPool(name, chosen, numbers, router, picker, http2=http2, fail_open=fail_open)
        self.pools[name] = made
        return made

    def _new_pod(self, name: str) -> Pod:
        self._addresses += 1
        return Pod(name, f"127.0.7.{self._addresses}")

    async def gateway(self, routes: dict[tuple[str, str], Any]) -> None:
        """Start Envoy. `routes`: (host or "*", path) -> name of a pool, or weights of pools."""
        port, admin = envoy_proxy.free_port(), envoy_proxy.free_port()
        hosts: dict[str, list[dict[str, Any]]] = {}
        for (host, path), target in routes.items():
            hosts.setdefault(host, []).append({"match": {"prefix": path}, **self._target(target)})
        virtual = [{"name": host, "domains": [host], "routes": found} for host, found in hosts.items()]
        clusters = []
        for each in self.pools.values():
            picker = f"{each.name}-picker"
            clusters.append(envoy_proxy.pool_cluster(each.name, picker, http2=each.http2))
            asked = envoy_proxy.picker_cluster(f"127.0.0.1:{each.picker.grpc_port}", picker, tls=True)
            clusters.append(asked | (_WITHOUT_DEAD_PICKERS if each.fail_open else {}))
        first = next(iter(self.pools))
        filters = [envoy_proxy.picker_filter(f"{first}-picker")]
        # A route chosen by weight must stay chosen when the picker has answered.
        filters[0]["typed_config"]["route_cache_action"] = "RETAIN"
        config = envoy_proxy.bootstrap(port, filters, virtual, clusters, admin)
        proxy = envoy_proxy.started(config, self._directory / "envoy.log", port, admin)
        self.url = await self._stack.enter_async_context(proxy)

    def _target(self, target: str | dict[str, int]) -> dict[str, Any]:
        if isinstance(target, str):
            return {
                "route": {"cluster": target, "timeout": "0s"},
                "typed_per_filter_config": self._picker_of(target),
            }
        weighted = [
            {"name": name, "weight": weight, "typed_per_filter_config": self._picker_of(name)}
            for name, weight in target.items()
        ]
        return {"route": {"weighted_clusters": {"clusters": weighted}, "timeout": "0s"}}

    def _picker_of(self, pool: str) -> dict[str, Any]:
        overrides = {
            "grpc_service": {"envoy_grpc": {"cluster_name": f"{pool}-picker"}},
            "failure_mode_allow": self.pools[pool].fail_open,
        }
        return {"endpoint_picker": {"@type": _PER_ROUTE, "overrides": overrides}}

    async def get(self, path: str, host: str = "primary.example.com") -> Answer:
        """Send a plain GET."""
        async with self.client.get(self.url + path, headers={"host": host}) as response:
            return await _answer(response)

    async def post(self, path: str, steer: str = "", host: str = "primary.example.com") -> Answer:
        """Send a completion, steered by the test header."""
        headers = {"host": host, "content-type": "application/json"} | ({STEER: steer} if steer else {})
        async with self.client.post(self.url + path, data=BODY, headers=headers) as response:
            return await _answer(response)

    async def posts(self, count: int, parallel: int, path: str, steer: str) -> list[Answer]:
        """Send many, so many at a time."""
        room = asyncio.Semaphore(parallel)

        async def one() -> Answer:
            async with room:
                return await self.post(path, steer)

        return list(await asyncio.gather(*(one() for _ in range(count))))


async def _answer(response: aiohttp.ClientResponse) -> Answer:
    text = await response.text()
    served = response.headers.get(SERVED, "")
    return Answer(response.status, json.loads(text) if response.status == 200 else {}, served)


def _echo(pod: Pod, port: int, method: str, path: str, headers: dict[str, str]) -> bytes:
    echo = {"pod": pod.name, "address": pod.address, "httpPort": port, "method": method, "path": path}
    return json.dumps({**echo, "headers": headers}).encode()


@asynccontextmanager
async def echoing(pod: Pod, port: int) -> Any:
    """Echo HTTP/1.1 on one port of the pod."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = _echo(pod, port, request.method, request.path, headers)
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, pod.address, port).start()
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def echoing_http2(pod: Pod, port: int) -> Any:
    """Echo cleartext HTTP/2 on one port of the pod; answer HTTP/1.1 with 400."""
    server = await asyncio.get_running_loop().create_server(lambda: _Http2Echo(pod, port), pod.address, port)
    try:
        yield
    finally:
        server.close()


class _Http2Echo(asyncio.Protocol):
    def __init__(self, pod: Pod, port: int) -> None:
        self._pod, self._port = pod, port
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._requests: dict[int, dict[str, str]] = {}
        self._began = b""

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        if len(self._began) < 4:
            self._began += data[:4]
            if not b"PRI ".startswith(self._began[:4]):
                text = b"Expected h2c request"
                head = f"HTTP/1.1 400 Bad Request\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
                self._transport.write(head.encode() + text)
                self._transport.close()
                return
            if len(self._began) == len(data[:4]):
                self._connection.initiate_connection()
        for event in self._connection.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self._requests[event.stream_id] = {
                    name.decode(): value.decode() for name, value in event.headers
                }
            elif isinstance(event, h2.events.DataReceived):
                self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self._answer(event.stream_id)
        self._flush()

    def _answer(self, stream: int) -> None:
        headers = self._requests.pop(stream)
        body = _echo(self._pod, self._port, headers[":method"], headers[":path"], headers)
        self._connection.send_headers(stream, [(":status", "200"), ("content-type", "application/json")])
        self._connection.send_data(stream, body, end_stream=True)

    def _flush(self) -> None:
        self._transport.write(self._connection.data_to_send())
