"""Model servers, a picker in this process and the real Envoy, whose HTTP/2 windows are its defaults."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import aiohttp

import echo_server
import envoy_proxy
from echo_server import EchoServer
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.observability.metrics import PoolFigures
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.servers import PickerServers
from endpoint_picker.settings import parse
from ext_proc.processor import Ending

JSON = {"content-type": "application/json"}


def endpoint(address: str) -> Endpoint:
    host, _, port = address.rpartition(":")
    return Endpoint(f"server-{port}", "default", host, int(port))


class Addressed(Protocol):
    """A model server: its address is "ip:port"."""

    @property
    def address(self) -> str: ...


class Stage:
    """Model servers, a picker and Envoy in front."""

    def __init__(self, stack: AsyncExitStack, log: Path) -> None:
        self._stack = stack
        self._log = log
        self.router: PoolRouter = build_router()
        self.servers: list[EchoServer] = []
        self.model_servers: list[Addressed] = []
        """Servers of a test's own, which `start` offers beside the others."""
        self.url = ""
        self.client = aiohttp.ClientSession()

    async def start(
        self,
        *flags: str,
        servers: int = 2,
        tls: bool = False,
        subset: slice | None = None,
        collector: str = "",
        modes: tuple[str, str] = envoy_proxy.FULL_DUPLEX,
    ) -> None:
        """Start all with these flags of the picker. `collector`: where Envoy sends its own spans.

        `modes` are those of request and response bodies.
        """
        self._stack.push_async_callback(self.client.close)
        for _ in range(servers):
            self.servers.append(await self._stack.enter_async_context(echo_server.running()))
        given = ["--pool-name", "p", "--bind-address", "127.0.0.1", f"--secure-serving={str(tls).lower()}"]
        ports = ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
        settings = parse([*given, *ports, *flags])
        self.router.scheduler.emit_scores = settings.emit_endpoint_scores
        self.picker = PickerServers(settings, self.router, lambda: PoolFigures(0))
        await self.picker.start()
        self._stack.push_async_callback(self.picker.stop)
        self.offer(*self.servers, *self.model_servers)
        self.picker.pool_synced()
        await self.picker.serve()
        hint = None if subset is None else [each.address for each in self.servers[subset]]
        proxy = envoy_proxy.running(
            f"127.0.0.1:{self.picker.grpc_port}",
            self._log,
            tls=tls,
            subset=hint,
            collector=collector,
            modes=modes,
        )
        self.url = await self._stack.enter_async_context(proxy)

    def offer(self, *servers: Addressed) -> None:
        self.router.replace_endpoints([endpoint(each.address) for each in servers])

    async def flush_traces(self) -> None:
        """Export the picker's spans now."""
        tracing = self.picker.tracing
        assert tracing is not None
        await tracing.flush()

    async def settled(self) -> None:
        """Wait until no reservation and no body is held."""
        await until(lambda: not self.router.ledger.held and not self.picker.metrics.open_exchanges)
        assert self.picker.budget.held_bytes == 0
        for ending in (Ending.PROTOCOL_ERROR, Ending.INTERNAL_ERROR):
            assert not self.picker.metrics.endings.labels(ending.value).value


async def until(condition: Callable[[], bool]) -> None:
    async def look() -> bool:
        return condition()

    await eventually(look)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - the state of the world has no event
            await asyncio.sleep(0.02)


def prompt(size: int, seed: int = 0) -> bytes:
    text = hashlib.sha256(str(seed).encode()).hexdigest() * (size // 64 + 1)
    return json.dumps({"stream": False, "model": "m", "prompt": text[:size]}).encode()


def streaming(size: int, seed: int) -> bytes:
    return prompt(size, seed).replace(b'"stream": false', b'"stream": true')


async def post(stage: Stage, body: bytes, path: str = "/v1/completions", **headers: str) -> Any:
    async with stage.client.post(stage.url + path, data=BytesIO(body), headers=JSON | headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()
