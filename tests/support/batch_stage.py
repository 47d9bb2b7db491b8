"""A real `headroom-batch run` process and a gateway on a loopback port, for tests."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from aiohttp import web

LIMIT_S = 60.0

Handler = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


class StandInGateway:
    """Answers POSTs by a handler; counts what is in flight."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.in_flight = 0
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        try:
            body = await request.read()
            self.bodies.append(body)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self.paths.append(request.path_qs)
            return await self._handler(request, body)
        finally:
            self.in_flight -= 1

    async def start(self) -> None:
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


class BatchProcess:
    """A `headroom-batch run`; its log goes to `FOLDER/NAME.log`."""

    def __init__(self, folder: Path, name: str = "batch", module: str = "batch_subscriber.entry") -> None:
        self._folder = folder
        self._name = name
        self._module = module
        self.process: asyncio.subprocess.Process | None = None
        self.http = ""

    async def start(self, *flags: str, environment: dict[str, str] | None = None) -> None:
        code = f"import {self._module} as m; m.main()"
        log = (self._folder / f"{self._name}.log").open("ab")
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, "run", *flags,
                stdout=log, stderr=log, env={**os.environ, **(environment or {})},
            )  # fmt: skip
        finally:
            log.close()

    async def page(self, url: str) -> tuple[int, str]:
        """GET a page; status 0 when no connection is made."""
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                return response.status, await response.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def until_page(self, url: str, accept: Callable[[int, str], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not accept(*await self.page(url)):  # noqa: ASYNC110 - another process is awaited
                await asyncio.sleep(0.02)

    def log(self) -> str:
        return (self._folder / f"{self._name}.log").read_text()

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()
