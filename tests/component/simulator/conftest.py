"""Fixtures of the simulator's component tests."""

from collections.abc import AsyncIterator

import pytest

from simulator_process import Simulator, Start, new_host, spawn


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start simulators; each is ready on return and killed at the end."""
    started: list[Simulator] = []

    async def make(*flags: str, host: str | None = None, env: dict[str, str] | None = None) -> Simulator:
        simulator = await spawn(*flags, host=host or new_host(), env=env)
        started.append(simulator)
        await simulator.until_health(200)
        return simulator

    yield make
    for simulator in started:
        if simulator.process.returncode is None:
            simulator.process.kill()
        await simulator.process.communicate()
