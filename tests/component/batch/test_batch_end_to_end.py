"""API, subscribers and a simulated model server, each a process, on a queue in Redis: kills lose nothing."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai

from batch_servers import RedisServer, free_port
from batch_serving import COMMAND, ServeProcess, input_lines
from simulator_process import Simulator, new_host, spawn

PATIENCE_S = 100.0
COUNT = 120


@asynccontextmanager
async def subscriber(redis: str, gateway: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "run", "--queue", redis, "--results", redis, "--gateway", gateway,
            "--visibility-s", "3", "--http", f"127.0.0.1:{free_port()}",
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def model_server() -> AsyncIterator[Simulator]:
    simulator = await spawn("--model=qwen", host=new_host())
    try:
        await simulator.until_health(200)
        yield simulator
    finally:
        simulator.process.kill()
        await simulator.process.communicate()


async def completed(client: openai.AsyncOpenAI, batch_id: str, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            counts = (await client.batches.retrieve(batch_id)).request_counts
            if counts is not None and counts.completed >= wanted:
                return
            await asyncio.sleep(0.05)


async def test_a_batch_outlives_kills_of_a_subscriber_and_of_the_queue(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    redis.start()
    (tmp_path / "api").mkdir()
    served = ServeProcess(tmp_path / "api" / "home", "--queue", redis.url, "--results", redis.url)
    log = tmp_path / "run.log"
    try:
        await served.start()
        bodies: list[dict[str, object]] = [
            {
                "model": "qwen",
                "max_tokens": 4,
                "messages": [{"role": "user", "content": f"count to {number}"}],
            }
            for number in range(COUNT)
        ]
        async with (
            openai.AsyncOpenAI(base_url=served.url, api_key="unused", max_retries=5) as client,
            model_server() as simulator,
            subscriber(redis.url, simulator.url, log) as first,
            subscriber(redis.url, simulator.url, log),
        ):
            file = await client.files.create(file=("jobs.jsonl", input_lines(bodies)), purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            await completed(client, batch.id, 5)
            first.send_signal(signal.SIGKILL)
            await first.wait()
            redis.kill()
            redis.start()
            await completed(client, batch.id, COUNT)
            async with asyncio.timeout(PATIENCE_S):
                while (batch := await client.batches.retrieve(batch.id)).status != "completed":
                    assert batch.status in ("in_progress", "finalizing")
                    await asyncio.sleep(0.05)
            assert batch.output_file_id is not None
            text = (await client.files.content(batch.output_file_id)).text
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["custom_id"] for line in lines] == [f"request-{number}" for number in range(COUNT)]
        assert {line["response"]["status_code"] for line in lines} == {200}
    finally:
        await served.stop()
        redis.stop()
