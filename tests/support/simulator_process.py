"""Real simulator processes for tests, each on its own loopback address."""

import asyncio
import itertools
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

LIMIT_S = 30.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Simulator:
    """A running `python -m model_server_sim`."""

    process: asyncio.subprocess.Process
    host: str

    @property
    def url(self) -> str:
        return self.at(8000)

    def at(self, port: int) -> str:
        return f"http://{self.host}:{port}"

    async def get(self, path: str, port: int = 8000) -> tuple[int, str]:
        """GET a path on a new connection; status 0 when it cannot be made."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.at(port) + path) as response:
                return response.status, await response.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def metric(self, name: str, port: int = 8000) -> float:
        """Return the sum of a metric's series."""
        _, page = await self.get("/metrics", port)
        values = re.findall(rf"^{re.escape(name)}\{{.*\}} (\S+)$", page, re.MULTILINE)
        assert values, name
        return sum(map(float, values))

    async def until_metric(self, name: str, accept: Callable[[float], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                if accept(await self.metric(name)):
                    return
                await asyncio.sleep(0.01)

    async def until_health(self, status: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                if (await self.get("/health"))[0] == status:
                    return
                await asyncio.sleep(0.01)

    async def exit_code(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


#: The fixture `start`: `await start("--seed", "1", env={...}, host=...)`.
Start = Callable[..., Awaitable[Simulator]]


async def spawn(*flags: str, host: str, env: dict[str, str] | None = None) -> Simulator:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "model_server_sim", *flags, env={**os.environ, "POD_IP": host, **(env or {})},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    return Simulator(process, host)


def new_host() -> str:
    pid = os.getpid()
    return f"127.{64 + pid // 256 % 64}.{pid % 256}.{next(_numbers)}"
