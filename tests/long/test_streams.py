"""Many streams and large bodies through the real Envoy: `make test-streams`, about a minute."""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest

from envoy_stage import JSON, Stage, streaming
from ext_proc.processor import Ending
from simulator_process import new_host, spawn

pytestmark = pytest.mark.long
STREAMS = 500
LARGE = 64_000_000


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack, tmp_path / "envoy.log")


async def read(client: aiohttp.ClientSession, url: str, seed: int, leaves: bool) -> str:
    """Send a streaming request, and leave at a random point or read to the end; tell how it went."""
    rng = random.Random(seed)
    body = streaming(rng.randrange(1000, 60_000), seed)
    patience = rng.random() * 2 if leaves else 120
    try:
        async with asyncio.timeout(patience):
            async with client.post(f"{url}/v1/completions", data=BytesIO(body), headers=JSON) as response:
                await asyncio.sleep(rng.random() / 10 if leaves else 0)
                raw = await response.read()
    except TimeoutError:
        return "left"
    return "whole" if response.status == 200 and raw.endswith(b"data: [DONE]\n\n") else "broken"


async def test_no_stream_is_lost_while_other_clients_leave_at_random(stage: Stage) -> None:
    await stage.start(servers=3)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        results = await asyncio.gather(
            *(read(client, stage.url, seed, leaves=seed % 3 == 0) for seed in range(STREAMS))
        )
    stayed = [result for seed, result in enumerate(results) if seed % 3]
    assert Counter(stayed) == {"whole": len(stayed)}
    assert "broken" not in results
    await stage.settled()
    metrics = stage.picker.metrics
    assert metrics.request_running.labels("m", "m", "default-flow", "0").value == 0
    ended = {ending: metrics.endings.labels(ending.value).value for ending in Ending}
    assert ended[Ending.COMPLETED] >= len(stayed)
    assert ended[Ending.COMPLETED] + ended[Ending.DISCONNECTED] == sum(ended.values())


@dataclass(frozen=True)
class Server:
    address: str


async def test_sixty_four_megabytes_come_back_as_they_were_sent(stage: Stage) -> None:
    simulator = await spawn(host=new_host())
    try:
        await simulator.until_health(200)
        await stage.start(servers=0)
        stage.offer(Server(f"{simulator.host}:8000"))
        body = b'{"model": "m", "prompt": "%b"}' % random.Random(5).randbytes(LARGE // 2).hex().encode()
        headers = {"x-sim-echo": "1", **JSON}
        digest = hashlib.sha256()
        url = f"{stage.url}/v1/completions"
        async with stage.client.post(url, data=BytesIO(body), headers=headers) as response:
            assert response.status == 200, await response.text()
            async for piece in response.content.iter_any():
                digest.update(piece)
        assert digest.digest() == hashlib.sha256(body).digest()
        await stage.settled()
    finally:
        simulator.process.kill()
        await simulator.process.communicate()
