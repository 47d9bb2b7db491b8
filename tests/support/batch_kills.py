"""One run of two subscribers that are killed at every step, and the count of what became of its jobs."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
from collections import Counter
from pathlib import Path

from aiohttp import web

from batch_contracts import make_job
from batch_stage import StandInGateway
from batch_subscriber.jobs import Job
from batch_subscriber.queues.sqlite import SqliteQueue
from batch_subscriber.results.files import FileResults
from batch_victim import STEPS, Victims

JOBS = 40
#: Awaited for one run; it takes seconds.
LIMIT_S = 300.0


async def _answer(request: web.Request, body: bytes) -> web.StreamResponse:
    """Answer in two parts; of a job that is sent twice the answers differ."""
    text = json.dumps({"of": body.decode(), "by": os.urandom(8).hex(), "pad": "x" * 3000}).encode()
    response = web.StreamResponse(
        headers={"content-length": str(len(text)), "content-type": "application/json"}
    )
    await asyncio.sleep(random.uniform(0.01, 0.05))
    await response.prepare(request)
    await response.write(text[:1500])
    await asyncio.sleep(0.01)
    with contextlib.suppress(ConnectionError):
        await response.write(text[1500:])
    return response


class KillRun:
    """`seed` orders the steps and chooses the counts; `faults` says what else happened."""

    def __init__(self, folder: Path, victims: Victims, seed: int) -> None:
        self._folder = folder
        self._victims = victims
        self._random = random.Random(seed)
        self._gateway = StandInGateway(_answer)
        self.kills: Counter[str] = Counter()
        """By step; `late`: it did not come to its step, and was killed from outside."""

    def _jobs(self, first: int, count: int) -> list[Job]:
        return [
            make_job(number, submitted_at=0.0, group="", body=b"job %d" % number)
            for number in range(first, first + count)
        ]

    async def run(self) -> None:
        """Raise AssertionError unless every job has one result, and nothing is left."""
        await self._gateway.start()
        queue = SqliteQueue(self._folder / "q.db")
        try:
            async with asyncio.timeout(LIMIT_S):
                await queue.put(self._jobs(0, JOBS // 2))
                steps = [*STEPS, "any"]
                self._random.shuffle(steps)
                await asyncio.gather(
                    self._replica(steps[::2], queue),
                    self._replica(steps[1::2], queue),
                    self._trouble(queue),
                )
            await self._check(queue)
        finally:
            await queue.close()
            await self._gateway.stop()

    async def _replica(self, steps: list[str], queue: SqliteQueue) -> None:
        """Run subscribers in turn: each dies at a step, the last works till nothing is left."""
        flags = [
            f"--queue=sqlite:{self._folder}/q.db",
            f"--results=file:{self._folder}/results",
            f"--gateway={self._gateway.url}",
            "--http=",
            "--visibility-s=1",
            "--max-deliveries=1000",
            "--first-in-flight=3",
            "--max-in-flight=6",
            "--drain-s=5",
        ]
        log = self._folder / "log"
        for step in steps:
            count = self._random.randint(1, 3)
            armed = "" if step == "any" else step
            victim = await self._victims.start(flags, log, armed, count)
            with contextlib.suppress(TimeoutError):
                # Where the other replica has done the work, a step may never be reached.
                async with asyncio.timeout(self._random.uniform(0.05, 0.5) if step == "any" else 4.0):
                    await asyncio.shield(victim.end)
            came = armed and victim.end.done()
            assert await victim.stop(signal.SIGKILL) == -signal.SIGKILL, log.read_text()
            self.kills[step if came or step == "any" else "late"] += 1
        last = await self._victims.start(flags, log)
        while (await queue.backlog()).oldest_submitted_at is not None:  # noqa: ASYNC110 - other processes' work
            await asyncio.sleep(0.05)
        # Where the other replica did the rest, it may not have come to its signal handler.
        assert await last.stop(signal.SIGTERM) in (0, -signal.SIGTERM), log.read_text()

    async def _trouble(self, queue: SqliteQueue) -> None:
        """Accept more jobs, take the result store away for a while, then the queue."""
        await asyncio.sleep(self._random.uniform(0.1, 0.5))
        await queue.put(self._jobs(JOBS // 2, JOBS - JOBS // 2))
        await asyncio.to_thread(self._take_away_results)
        await asyncio.sleep(self._random.uniform(0.2, 0.8))
        await asyncio.to_thread(self._give_back_results)
        foreign = sqlite3.connect(self._folder / "q.db", isolation_level=None, check_same_thread=False)
        await asyncio.to_thread(foreign.execute, "BEGIN EXCLUSIVE")
        await asyncio.sleep(self._random.uniform(0.1, 0.6))
        foreign.close()

    def _take_away_results(self) -> None:
        results = self._folder / "results"
        results.mkdir(exist_ok=True)
        results.rename(self._folder / "away")
        results.write_text("no folder")

    def _give_back_results(self) -> None:
        results = self._folder / "results"
        results.unlink()
        (self._folder / "away").rename(results)

    async def _check(self, queue: SqliteQueue) -> None:
        assert await queue.letters(10) == []
        store = FileResults(self._folder / "results")
        for job in self._jobs(0, JOBS):
            result = await store.read(job.id, job.generation)
            assert result is not None, f"{job.id} is lost"
            assert json.loads(result.body)["of"] == job.body.decode()
        await store.close()
        found = await asyncio.to_thread(lambda: list((self._folder / "results").rglob("*.json")))
        assert len(found) == JOBS
