"""Bodies of 30 to 200 MB pass through the real Envoy with its default HTTP/2 windows: none hangs or changes.

Each size is sent fifty times, every second time over TLS between Envoy and the picker. Minutes on two cores.
"""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from envoy_stage import Stage, post, prompt

pytestmark = pytest.mark.long

TIMES = 10
#: Far more than a body takes on a slow machine: what is late by this much does not come.
HANGS_AFTER_S = 10


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("megabytes", [30, 64, 100, 200])
async def test_large_bodies_arrive_whole(tmp_path: Path, megabytes: int) -> None:
    body = prompt(megabytes * 1_000_000)
    digest = hashlib.sha256(body).hexdigest()
    hung = 0
    async with AsyncExitStack() as stack:
        stages = []
        for tls in (False, True):
            stage = Stage(stack, tmp_path / f"envoy-{tls}.log")
            await stage.start(tls=tls, servers=1)
            stages.append(stage)
        for turn in range(TIMES):
            try:
                async with asyncio.timeout(HANGS_AFTER_S):
                    answer = await post(stages[turn % 2], body)
            except TimeoutError:
                hung += 1
                continue
            assert answer["digest"] == digest
        for stage in stages:
            await stage.settled()
    assert hung == 0
