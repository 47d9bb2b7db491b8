"""The real Envoy with the operator's own bootstrap, its model servers in this process, a picker beside it."""

import asyncio
import hashlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from inference_api import names
from inference_operator.core.desired.proxy_bootstrap import ProxySettings, proxy_args
from local_cluster.images import DEFAULT_IMAGES

PICKER = Path(__file__).with_name("picker_stand_in.py")
#: Addresses that no other process of the machine uses, so that ports cannot collide.
PROXY_ADDRESS = "127.77.0.1"
SERVER_ADDRESSES = ("127.77.1.1", "127.77.1.2")


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])


async def eventually(probe: Callable[[], Awaitable[bool]], limit_s: float = 30) -> None:
    async with asyncio.timeout(limit_s):
        while not await probe():  # noqa: ASYNC110 (what is awaited lives in another process)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def process(
    *command: str, first_line: str = "", log: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program until the block ends; with `first_line`, wait until it prints that line."""
    with (log or Path("/dev/null")).open("ab") as output:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if first_line else output,
            stderr=output,
        )
    try:
        if child.stdout is not None:
            async with asyncio.timeout(30):
                line = await child.stdout.readline()
            assert line.decode().strip() == first_line
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@dataclass(slots=True)
class ModelServer:
    """Answers with its own address and a summary of the request; `/health` passes while it runs."""

    address: str
    port: int
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: a request to `/held` has sent its first bytes."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to let requests to `/held` end, well or broken."""
    _runner: web.AppRunner | None = None

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ModelServer"]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/held/{end}", self.hold)
        app.router.add_route("*", "/large/{megabytes}", self.large)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0, max_field_size=8 << 20, max_headers=512
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.address, self.port).start()
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        digest = hashlib.sha256(body).hexdigest()
        return web.json_response({"endpoint": self.endpoint, "headers": headers, "sha256": digest})

    async def hold(self, request: web.Request) -> web.StreamResponse:
        """Send a first chunk, wait for `release`, then send the last one or break the connection."""
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.endpoint.encode())
        self.held.set()
        await self.release.wait()
        if request.match_info["end"] == "broken":
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write(b" whole")
        return response

    async def large(self, request: web.Request) -> web.StreamResponse:
        """Send `megabytes` MiB, a number from the path."""
        await request.read()
        response = web.StreamResponse()
        response.content_length = int(request.match_info["megabytes"]) << 20
        await response.prepare(request)
        piece = bytes(range(256)) * 256
        with suppress(ConnectionError):
            for _ in range(response.content_length // len(piece)):
                await response.write(piece)
        return response


@dataclass(slots=True)
class Proxy:
    """A running proxy, its two model servers, and the control of its picker."""

    client: aiohttp.ClientSession
    servers: list[ModelServer]
    settings: ProxySettings
    stack: AsyncExitStack
    picker: asyncio.subprocess.Process | None = None
    envoy: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://{self.settings.address}:{self.settings.port}"

    @property
    def status_url(self) -> str:
        return f"http://{self.settings.address}:{self.settings.status_port}"

    async def start_picker(self) -> None:
        command = (sys.executable, str(PICKER), str(self.settings.picker_port))
        endpoints = [server.endpoint for server in self.servers]
        self.picker = await self.stack.enter_async_context(
            process(*command, *endpoints, first_line="serving")
        )

    async def start_real_picker(self, folder: Path) -> None:
        """Start Headroom's own picker; the model servers are its endpoints, from a file in `folder`."""
        file = folder / "endpoints.json"
        listed = [
            {"name": server.address, "address": server.address, "port": server.port}
            for server in self.servers
        ]
        file.write_text(json.dumps({"endpoints": listed}))
        flags = {
            "--endpoints-file": file,
            "--bind-address": "127.0.0.1",
            "--grpc-port": self.settings.picker_port,
            "--grpc-health-port": 0,
            "--metrics-port": 0,
        }
        arguments = [str(text) for flag in flags.items() for text in flag]
        picker = process(sys.executable, "-m", "endpoint_picker.main", *arguments)
        self.picker = await self.stack.enter_async_context(picker)

    async def end_picker(self) -> None:
        assert self.picker is not None
        if self.picker.returncode is None:
            self.picker.kill()
        await self.picker.wait()

    def signal_picker(self, number: signal.Signals) -> None:
        assert self.picker is not None
        self.picker.send_signal(number)

    async def set_pool(self, *servers: ModelServer) -> None:
        """Make the picker serve these endpoints over EDS; wait until Envoy has updated its cluster."""
        assert self.picker is not None
        assert self.picker.stdin is not None
        before = await self.statistic("envoy_cluster_update_success", "pool")
        self.picker.stdin.write(" ".join(server.endpoint for server in servers).encode() + b"\n")
        await self.picker.stdin.drain()

        async def taken() -> bool:
            return await self.statistic("envoy_cluster_update_success", "pool") > before

        await eventually(taken)

    async def count(self, name: str) -> int:
        """Return a statistic of Envoy's listener for requests."""
        start = f'{name}{{envoy_http_conn_manager_prefix="requests"}} '
        async with self.client.get(f"{self.status_url}/stats/prometheus") as response:
            lines = (await response.text()).splitlines()
        return next(int(line.removeprefix(start)) for line in lines if line.startswith(start))

    async def statistic(self, name: str, cluster: str) -> int:
        """Return a statistic of one of Envoy's clusters, 0 when it is absent."""
        start = f'{name}{{envoy_cluster_name="{cluster}"}} '
        async with self.client.get(f"{self.status_url}/stats/prometheus") as response:
            lines = (await response.text()).splitlines()
        return next((int(line.removeprefix(start)) for line in lines if line.startswith(start)), 0)

    async def ask(
        self, *picks: str, body: bytes = b"", path: str = "/v1/completions", **headers: str
    ) -> tuple[int, str, str]:
        """Return status, the endpoint that answered, and the one that Envoy reported to the picker."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if picks:
            sent["x-test-pick"] = ",".join(picks)
        async with self.client.post(f"{self.url}{path}", data=body, headers=sent) as response:
            text = await response.read()
            if response.status != 200:
                return response.status, "", ""
            answered = (await response.json())["endpoint"] if text else ""
            return response.status, answered, response.headers.get("x-test-served", "")

    async def until_healthy_servers_are(self, count: int, limit_s: float = 30) -> None:
        async def counted() -> bool:
            return await self.statistic("envoy_cluster_membership_healthy", "pool") == count

        await eventually(counted, limit_s)

    async def until_the_picker_is_away(self, *, failed_checks: int = 1) -> None:
        """Wait until the picker is unhealthy and `failed_checks` more of Envoy's checks have failed."""
        before = await self.statistic("envoy_cluster_health_check_failure", "picker")

        async def is_away() -> bool:
            failed = await self.statistic("envoy_cluster_health_check_failure", "picker") - before
            healthy = await self.statistic("envoy_cluster_membership_healthy", "picker")
            return healthy == 0 and failed >= failed_checks

        await eventually(is_away)

    async def until_it_follows_the_picker(self) -> None:
        await eventually(self.follows_the_picker)

    async def follows_the_picker(self) -> bool:
        """Whether the picked endpoint answered a request, and Envoy reported it to the picker."""
        picked = self.servers[0].endpoint
        return await self.ask(picked) == (200, picked, picked)

    async def until_the_picker_picks(self) -> None:
        """Wait until a request goes through the picker that runs."""

        async def picked() -> bool:
            async with self.client.get(f"{self.url}/v1/models") as response:
                if response.status != 200:
                    return False
                return names.DESTINATION_KEY in (await response.json())["headers"]

        await eventually(picked)

    async def is_ready(self) -> bool:
        try:
            async with self.client.get(f"{self.status_url}/ready") as response:
                return response.status == 200
        except aiohttp.ClientConnectionError:
            return False


async def prepare(
    stack: AsyncExitStack, *, fail_open: bool, server: type[ModelServer] = ModelServer
) -> Proxy:
    """Run model servers while `stack` is open; the proxy's picker and Envoy are still to be started."""
    settings = ProxySettings(
        pool_namespace="default",
        pool_name="pool",
        address=PROXY_ADDRESS,
        picker_host="localhost",
        picker_port=free_port(),
        port=free_port(PROXY_ADDRESS),
        status_port=free_port(PROXY_ADDRESS),
        fail_open=fail_open,
        upstream_http2=False,
    )
    servers = [
        await stack.enter_async_context(server(address, free_port(address)).running())
        for address in SERVER_ADDRESSES
    ]
    session = aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=30), connector=aiohttp.TCPConnector(limit=0)
    )
    return Proxy(await stack.enter_async_context(session), servers, settings, stack)


async def start(stack: AsyncExitStack, *, fail_open: bool) -> Proxy:
    """Run model servers, the picker stand-in and Envoy while `stack` is open, and wait until they work."""
    proxy = await prepare(stack, fail_open=fail_open)
    await proxy.start_picker()
    await start_envoy(proxy)
    await proxy.until_it_follows_the_picker()
    return proxy


async def start_envoy(proxy: Proxy, *, workers: int | None = None, log: Path | None = None) -> None:
    """Run Envoy with the operator's arguments and wait until it is ready."""
    arguments = proxy_args(proxy.settings)
    if workers is not None:
        arguments[arguments.index("--concurrency") + 1] = str(workers)
    command = (*DEFAULT_IMAGES["envoyproxy/envoy"].argv, *arguments)
    proxy.envoy = await proxy.stack.enter_async_context(process(*command, log=log))
    await eventually(proxy.is_ready)
