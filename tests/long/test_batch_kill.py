"""A hundred runs of two subscribers that are killed with SIGKILL at every step.

In each, the result store is away for a while and the queue locked for a while. Every job has one result.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from batch_kills import KillRun
from batch_victim import STEPS, Victims

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

SEEDS = 100
AT_ONCE = 4


async def test_a_hundred_seeds(tmp_path: Path) -> None:
    victims = Victims()
    await victims.open()
    places = asyncio.Semaphore(AT_ONCE)
    kills: Counter[str] = Counter()

    async def one(seed: int) -> None:
        folder = tmp_path / str(seed)
        folder.mkdir()
        async with places:
            run = KillRun(folder, victims, seed)
            await run.run()
            kills.update(run.kills)

    try:
        async with asyncio.TaskGroup() as group:
            for seed in range(SEEDS):
                group.create_task(one(seed))
    finally:
        await victims.close()
    print(f"{SEEDS} seeds, {kills.total()} kills: {dict(kills)}")
    assert all(kills[step] >= SEEDS / 4 for step in STEPS)
