"""The real Envoy with our bootstrap, model servers in this process, and a picker that can be killed."""

import asyncio
import hashlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from inference_operator.desired.proxy_bootstrap import ProxySettings, proxy_args
from local_cluster.images import DEFAULT_IMAGES

PICKER = Path(__file__).with_name("picker_stand_in.py")
#: Addresses of their own keep this folder's processes apart from all others on the machine.
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
async def process(*command: str, first_line: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    stdout = asyncio.subprocess.PIPE if first_line else asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(*command, stdout=stdout, stderr=asyncio.subprocess.DEVNULL)
    try:
        if first_line and child.stdout is not None:
            line = await asyncio.wait_for(child.stdout.readline(), 30)
            assert line.decode().strip() == first_line
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@dataclass(slots=True)
class ModelServer:
    """Answers with its own address and what it got."""

    address: str
    port: int
    _runner: web.AppRunner | None = None

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ModelServer"]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
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


@dataclass(slots=True)
class Proxy:
    """A running proxy, its two model servers, and the control of its picker."""

    client: aiohttp.ClientSession
    servers: list[ModelServer]
    settings: ProxySettings
    stack: AsyncExitStack
    picker: asyncio.subprocess.Process | None = None

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

    def signal_picker(self, number: signal.Signals) -> None:
        assert self.picker is not None
        self.picker.send_signal(number)

    async def ask(self, *picks: str, body: bytes = b"", **headers: str) -> tuple[int, str, str]:
        """Return status, the endpoint that answered, and the one the picker was told of."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if picks:
            sent["x-test-pick"] = ",".join(picks)
        async with self.client.post(f"{self.url}/v1/completions", data=body, headers=sent) as response:
            text = await response.read()
            if response.status != 200:
                return response.status, "", ""
            answered = (await response.json())["endpoint"] if text else ""
            return response.status, answered, response.headers.get("x-test-served", "")

    async def until_healthy_servers_are(self, count: int) -> None:
        line = f'envoy_cluster_membership_healthy{{envoy_cluster_name="pool"}} {count}'

        async def counted() -> bool:
            async with self.client.get(f"{self.status_url}/stats/prometheus") as response:
                return line in (await response.text()).splitlines()

        await eventually(counted)

    async def until_it_follows_the_picker(self) -> None:
        await eventually(self.follows_the_picker)

    async def follows_the_picker(self) -> bool:
        """Whether one picked request was answered by the picked endpoint, with the picker's knowledge."""
        picked = self.servers[0].endpoint
        return await self.ask(picked) == (200, picked, picked)


StartProxy = Callable[[bool], Awaitable[Proxy]]


@pytest.fixture
async def start_proxy() -> AsyncIterator[StartProxy]:
    """Start a proxy of failureMode FailOpen (True) or FailClose, and wait until it follows its picker."""
    async with AsyncExitStack() as stack:

        async def start(fail_open: bool) -> Proxy:
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
                await stack.enter_async_context(ModelServer(address, free_port(address)).running())
                for address in SERVER_ADDRESSES
            ]
            client = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
            )
            proxy = Proxy(client, servers, settings, stack)
            await proxy.start_picker()
            envoy = DEFAULT_IMAGES["envoyproxy/envoy"].argv
            await stack.enter_async_context(process(*envoy, *proxy_args(settings)))
            await eventually(lambda: is_ready(proxy))
            await proxy.until_it_follows_the_picker()
            return proxy

        yield start


async def is_ready(proxy: Proxy) -> bool:
    try:
        async with proxy.client.get(f"{proxy.status_url}/ready") as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False
