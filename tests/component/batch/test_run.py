"""`headroom-batch run` as a process: what it sends, how it answers probes, how it ends."""

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from batch_contracts import make_job
from batch_stage import LIMIT_S, BatchProcess, StandInGateway
from batch_subscriber.opening import open_queue, open_results
from batch_subscriber.queues.sqlite import SqliteQueue


class Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hold = asyncio.Event()
        self.hold.set()
        self.gateway = StandInGateway(self._answer)
        self.batch = BatchProcess(folder)
        self.queue = SqliteQueue(folder / "q.db")

    async def _answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        await self.hold.wait()
        return web.Response(body=b"\xff" + body, content_type="application/x-test")

    async def start(self, *flags: str) -> str:
        await self.gateway.start()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{found.getsockname()[1]}"
        await self.batch.start(
            f"--queue=sqlite:{self.folder}/q.db",
            f"--results=file:{self.folder}/results",
            f"--gateway={self.gateway.url}/base",
            f"--http={address}",
            *flags,
        )
        return f"http://{address}"

    async def until(self, accept: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not accept():  # noqa: ASYNC110 - another process is awaited
                await asyncio.sleep(0.01)

    async def until_empty(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (await self.queue.backlog()).oldest_submitted_at is not None:  # noqa: ASYNC110 - another process is awaited
                await asyncio.sleep(0.02)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.hold.set()
    if made.batch.process is not None:
        await made.batch.end()
    await made.gateway.stop()
    await made.queue.close()


async def test_a_job_arrives_byte_true_and_so_does_its_answer(stage: Stage) -> None:
    headers = (("x-tenant", "a"), ("x-gateway-inference-objective", "gold"))
    job = make_job(path="/v1/x?y=1", body=b"\x00{\xfe}", headers=headers, objective="low", submitted_at=0.0)
    plain = make_job(2, headers=(), submitted_at=0.0)
    await stage.queue.put([job, plain])
    await stage.start("--objective=batch")
    await stage.until_empty()
    sent = dict(zip(stage.gateway.bodies, stage.gateway.headers, strict=True))
    first, second = sent[job.body], sent[plain.body]
    assert "/base/v1/x?y=1" in stage.gateway.paths
    assert (first["x-llm-d-inference-objective"], first["x-tenant"]) == ("low", "a")
    assert "x-gateway-inference-objective" not in first
    assert "accept-encoding" not in first
    assert (second["x-llm-d-inference-objective"], second["content-type"]) == ("batch", "application/json")
    results = await open_results(f"file:{stage.folder}/results")
    result = await results.read(job.id, job.generation)
    await results.close()
    assert result is not None
    assert (result.status, result.content_type, result.body) == (
        200,
        "application/x-test",
        b"\xff" + job.body,
    )


async def test_probes_and_metrics_while_it_works_and_drains(stage: Stage) -> None:
    stage.hold.clear()
    await stage.queue.put([make_job(1, submitted_at=0.0)])
    url = await stage.start()
    await stage.batch.until_page(f"{url}/readyz", lambda status, _: status == 200)
    await stage.until(lambda: stage.gateway.in_flight == 1)
    assert (await stage.batch.page(f"{url}/healthz"))[0] == 200
    await stage.batch.until_page(
        f"{url}/metrics", lambda _, text: "headroom_batch_in_flight_requests 1.0" in text
    )
    assert stage.batch.process is not None
    stage.batch.process.terminate()
    await stage.batch.until_page(
        f"{url}/readyz", lambda status, text: status == 503 and "the process ends" in text
    )
    stage.hold.set()
    assert await stage.batch.end() == 0
    assert (await stage.queue.backlog()).oldest_submitted_at is None


async def test_sigterm_gives_back_what_it_cannot_finish(stage: Stage) -> None:
    stage.hold.clear()
    await stage.queue.put([make_job(number, submitted_at=0.0) for number in range(20)])
    await stage.start("--first-in-flight=3", "--drain-s=0.2")
    await stage.until(lambda: stage.gateway.in_flight == 3)
    assert await stage.batch.end() == 0
    await stage.until(lambda: stage.gateway.in_flight == 0)
    backlog = await stage.queue.backlog()
    assert (backlog.waiting, backlog.held) == (20, 0)


async def test_a_cancelled_group_frees_its_requests(stage: Stage) -> None:
    stage.hold.clear()
    await stage.queue.put([make_job(number, submitted_at=0.0) for number in range(3)])
    await stage.start()
    await stage.until(lambda: stage.gateway.in_flight == 3)
    await stage.queue.cancel("batch-1")
    await stage.until(lambda: stage.gateway.in_flight == 0)
    await stage.until_empty()


async def test_settings_that_cannot_work_end_it_with_status_2(stage: Stage) -> None:
    await stage.start("--max-in-flight=0")
    assert stage.batch.process is not None
    async with asyncio.timeout(LIMIT_S):
        assert await stage.batch.process.wait() == 2
    assert "max_in_flight: " in stage.batch.log()


async def test_a_queue_of_another_version_ends_it_with_status_2(stage: Stage) -> None:
    foreign = sqlite3.connect(stage.folder / "q.db")
    foreign.execute("PRAGMA user_version=7")
    foreign.close()
    await stage.start()
    assert stage.batch.process is not None
    async with asyncio.timeout(LIMIT_S):
        assert await stage.batch.process.wait() == 2
    assert stage.batch.log().splitlines()[-1].endswith("q.db has the layout 7; this version reads 1")


async def test_the_key_of_a_file_goes_along(stage: Stage) -> None:
    (stage.folder / "key").write_text("s3cret\n")
    own = (("authorization", "Bearer own"),)
    await stage.queue.put([make_job(1, submitted_at=0.0), make_job(2, submitted_at=0.0, headers=own)])
    await stage.start(f"--api-key-file={stage.folder}/key")
    await stage.until_empty()
    sent = sorted(headers["authorization"] for headers in stage.gateway.headers)
    assert sent == ["Bearer own", "Bearer s3cret"]
    assert "s3cret" not in stage.batch.log()


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(stage: Stage) -> None:
    await stage.queue.put([make_job(1, submitted_at=0.0, body=b"x" * 5000)])
    await stage.start("--max-response-bytes=2000", "--max-attempts=1")
    await stage.until_empty()
    queue = await open_queue(f"sqlite:{stage.folder}/q.db")
    (letter,) = await stage.queue.letters(10)
    await queue.close()
    assert "more than 2000 bytes" in letter.detail
