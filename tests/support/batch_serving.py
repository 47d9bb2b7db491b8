"""`headroom-batch serve` in a process of its own, and a subscriber that answers its jobs."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from batch_subscriber.jobs import Cause, Job, Result
from batch_subscriber.opening import open_queue, open_results
from batch_subscriber.queues.interface import Delivery, JobQueue
from batch_subscriber.results.interface import ResultStore

_PATIENCE_S = 60.0
COMMAND = (sys.executable, "-c", "from batch_subscriber.main import main; main()")


class ServeProcess:
    """The API's process on a folder; `url` is where it answers."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home = home
        self._flags = flags
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        """Start it, on the port that it had before."""
        log = (self.home.parent / "serve.log").open("ab")
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND, "serve", "--home", str(self.home), "--listen", f"127.0.0.1:{self.port}", *self._flags,
            stdout=asyncio.subprocess.PIPE, stderr=log,
        )  # fmt: skip
        log.close()
        assert self._process.stdout is not None
        async with asyncio.timeout(_PATIENCE_S):
            line = (await self._process.stdout.readline()).decode()
        assert line.startswith("Batches are served at http://127.0.0.1:"), self.log()
        self.port = int(line.split(":")[2].split("/")[0])

    def log(self) -> str:
        return (self.home.parent / "serve.log").read_text()[-4000:]

    async def kill(self) -> None:
        """End it as kill -9 does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """End it as Kubernetes does."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            async with asyncio.timeout(_PATIENCE_S):
                assert await self._process.wait() == 0, self.log()


def echo(job: Job) -> Result:
    """Answer with the request's body, as a chat completion; a body with `fail` is refused."""
    asked = json.loads(job.body)
    is_refused = "fail" in asked
    body = {"error": {"message": "bad"}} if is_refused else {"object": "chat.completion", "echo": asked}
    return Result(
        job_id=job.id,
        generation=job.generation,
        group=job.group,
        status=400 if is_refused else 200,
        content_type="application/json",
        body=json.dumps(body).encode(),
        cause=Cause.REFUSED if is_refused else Cause.NONE,
    )


class AnsweringSubscriber:
    """Takes jobs from a queue and writes what `answer` makes of them; those with None stay in its hands."""

    def __init__(self, queue: str, results: str, answer: Callable[[Job], Result | None] = echo) -> None:
        self._queue = queue
        self._results = results
        self._answer = answer
        self._task: asyncio.Task[None] | None = None
        self.taken: list[Job] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        queue, results = await open_queue(self._queue), await open_results(self._results)
        try:
            while True:
                deliveries = await queue.receive(64, 3600.0, 1.0)
                await asyncio.gather(*(self._end(one, queue, results) for one in deliveries))
        finally:
            await queue.close()
            await results.close()

    async def _end(self, delivery: Delivery, queue: JobQueue, results: ResultStore) -> None:
        self.taken.append(delivery.job)
        result = self._answer(delivery.job)
        if result is not None:
            await results.write(result)
            await queue.ack(delivery)


def input_lines(bodies: Sequence[dict[str, object]], url: str = "/v1/chat/completions") -> bytes:
    """Return an input file."""
    lines = [
        json.dumps({"custom_id": f"request-{number}", "method": "POST", "url": url, "body": body})
        for number, body in enumerate(bodies)
    ]
    return ("\n".join(lines) + "\n").encode()
