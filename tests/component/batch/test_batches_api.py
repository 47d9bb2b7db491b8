"""`headroom-batch serve`, driven by OpenAI's own client library."""

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest
from openai.types import Batch

from batch_serving import COMMAND, AnsweringSubscriber, ServeProcess, echo, input_lines
from batch_subscriber.jobs import Job, Result

PATIENCE_S = 100.0


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServeProcess]:
    process = ServeProcess(tmp_path / "home", "--cancel-grace-s", "1")
    await process.start()
    yield process
    await process.stop()


@pytest.fixture
async def client(served: ServeProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=served.url, api_key="unused", max_retries=5) as opened:
        yield opened


def subscriber(served: ServeProcess, answer: Any = echo) -> AnsweringSubscriber:
    return AnsweringSubscriber(f"sqlite:{served.home}/queue.db", f"file:{served.home}/results", answer)


async def begin(client: openai.AsyncOpenAI, content: bytes, window: Any = "24h") -> Batch:
    file = await client.files.create(file=("jobs.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window=window, metadata={"a": "b"}
    )


async def reached(client: openai.AsyncOpenAI, batch_id: str, *statuses: str) -> Batch:
    async with asyncio.timeout(PATIENCE_S):
        while (batch := await client.batches.retrieve(batch_id)).status not in statuses:
            assert batch.status not in ("completed", "failed", "expired", "cancelled"), batch
            await asyncio.sleep(0.05)
    return batch


async def done(client: openai.AsyncOpenAI, batch_id: str, wanted: int) -> None:
    """Return once so many requests of a batch are completed."""
    async with asyncio.timeout(PATIENCE_S):
        while (counts := (await client.batches.retrieve(batch_id)).request_counts) is None or (
            counts.completed < wanted
        ):
            assert counts is None or counts.failed == 0
            await asyncio.sleep(0.05)


async def content(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    text = (await client.files.content(file_id)).text
    return [json.loads(line) for line in text.splitlines()]


async def test_a_batch_goes_from_file_to_files(served: ServeProcess, client: openai.AsyncOpenAI) -> None:
    bodies: list[dict[str, object]] = [{"model": "m", "n": number} for number in range(700)]
    bodies[5] = {"model": "m", "fail": True}
    batch = await begin(client, input_lines(bodies))
    assert batch.metadata == {"a": "b"}
    async with subscriber(served) as answering:
        ended = await reached(client, batch.id, "completed")
    assert ended.request_counts is not None
    counts = ended.request_counts
    assert (counts.total, counts.completed, counts.failed) == (700, 699, 1)
    outputs = await content(client, ended.output_file_id)
    wanted = [number for number in range(700) if number != 5]
    assert [line["custom_id"] for line in outputs] == [f"request-{number}" for number in wanted]
    assert [line["response"]["body"]["echo"]["n"] for line in outputs] == wanted
    (error,) = await content(client, ended.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("request-5", 400)
    assert len(answering.taken) == 700
    assert {int(job.deadline or 0) for job in answering.taken} == {ended.expires_at}
    assert ended.expires_at == ended.created_at + 86_400


async def test_files_and_batches_are_listed_in_pages_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = [await client.files.create(file=(f"{n}.jsonl", b"x"), purpose="batch") for n in range(3)]
    assert [file.id async for file in client.files.list(limit=2)] == [file.id for file in reversed(made)]
    assert [file.id async for file in client.files.list(order="asc", purpose="batch")] == [f.id for f in made]
    found = await client.files.retrieve(made[0].id)
    assert (found.filename, found.bytes, found.purpose) == ("0.jsonl", 1, "batch")
    batches = [await begin(client, input_lines([{"model": "m"}])) for _ in range(3)]
    assert [batch.id async for batch in client.batches.list(limit=2)] == [b.id for b in reversed(batches)]
    assert (await client.files.delete(made[0].id)).deleted
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        await client.files.retrieve(made[0].id)
    with pytest.raises(openai.BadRequestError, match="cancel it first"):
        await client.files.delete(batches[0].input_file_id)


async def test_a_bad_file_fails_with_its_lines(client: openai.AsyncOpenAI) -> None:
    batch = await begin(client, input_lines([{"model": "m"}]) + b'{"custom_id":1}\nnonsense\n')
    failed = await reached(client, batch.id, "failed")
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [(error.line, error.code) for error in failed.errors.data] == [
        (2, "invalid_custom_id"),
        (3, "invalid_json_line"),
    ]
    assert (failed.output_file_id, failed.error_file_id) == (None, None)


async def test_a_cancelled_batch_keeps_what_is_done_and_says_what_is_not(
    served: ServeProcess, client: openai.AsyncOpenAI
) -> None:
    def only_even(job: Job) -> Result | None:
        return echo(job) if json.loads(job.body)["n"] % 2 == 0 else None

    batch = await begin(client, input_lines([{"model": "m", "n": number} for number in range(20)]))
    async with subscriber(served, only_even):
        await done(client, batch.id, 10)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        ended = await reached(client, batch.id, "cancelled")
    outputs, errors = (
        await content(client, ended.output_file_id),
        await content(client, ended.error_file_id),
    )
    assert [line["custom_id"] for line in outputs] == [f"request-{number}" for number in range(0, 20, 2)]
    assert [line["custom_id"] for line in errors] == [f"request-{number}" for number in range(1, 20, 2)]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'cancelled'"):
        await client.batches.cancel(batch.id)


async def test_an_expired_batch_has_its_files(served: ServeProcess, client: openai.AsyncOpenAI) -> None:
    batch = await begin(client, input_lines([{"model": "m", "n": number} for number in range(3)]), "1m")
    async with subscriber(served, lambda job: echo(job) if json.loads(job.body)["n"] == 1 else None):
        await done(client, batch.id, 1)
        await served.kill()
        _age(served.home, batch.id, 61)
        await served.start()
        ended = await reached(client, batch.id, "expired")
    assert ended.expired_at is not None
    assert [line["custom_id"] for line in await content(client, ended.output_file_id)] == ["request-1"]
    errors = await content(client, ended.error_file_id)
    assert [line["error"]["code"] for line in errors] == ["batch_expired"] * 2


def _age(home: Path, batch_id: str, seconds: float) -> None:
    """Make a batch older while nothing serves it."""
    with sqlite3.connect(home / "batches.db") as db:
        (text,) = db.execute("SELECT data FROM batches WHERE id = ?", (batch_id,)).fetchone()
        values = json.loads(text)
        values["times"]["created"] -= seconds
        db.execute("UPDATE batches SET data = ? WHERE id = ?", (json.dumps(values), batch_id))
    db.close()


async def test_kills_lose_and_double_nothing(served: ServeProcess, client: openai.AsyncOpenAI) -> None:
    batch = await begin(client, input_lines([{"model": "m", "n": number} for number in range(900)]))
    async with subscriber(served) as answering:
        for _ in range(4):
            # Each time it is somewhere else: checking, putting, watching, writing files.
            await asyncio.sleep(0.05)
            await served.kill()
            await served.start()
        ended = await reached(client, batch.id, "completed")
    outputs = await content(client, ended.output_file_id)
    assert [line["custom_id"] for line in outputs] == [f"request-{number}" for number in range(900)]
    assert {job.id for job in answering.taken} == {f"{batch.id}-{number + 1:06d}" for number in range(900)}


async def test_refusals_have_the_form_of_openai(served: ServeProcess, client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=("jobs.jsonl", b"{}"), purpose="batch")
    with pytest.raises(openai.BadRequestError) as window:
        await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24",  # type: ignore[arg-type]
        )
    assert (window.value.param, window.value.type) == ("completion_window", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as unknown:
        await client.batches.create(
            input_file_id="file-0", endpoint="/v1/completions", completion_window="24h"
        )
    assert (unknown.value.param, unknown.value.code) == ("input_file_id", "not_found")
    with pytest.raises(openai.BadRequestError, match="purpose must be 'batch'"):
        await client.files.create(file=("jobs.jsonl", b"{}"), purpose="assistants")
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_0")
    with pytest.raises(openai.NotFoundError, match="There is no GET /v1/models"):
        await client.models.list()
    async with aiohttp.ClientSession() as session:
        for sent in (b"x" * 100_000, b"[" * 60_000, b"[]"):
            async with session.post(f"{served.url}/batches", data=sent) as answer:
                assert answer.status in (400, 413)
                assert set(await answer.json()) == {"error"}
        async with session.post(f"{served.url}/files", data=b"x") as answer:
            assert "multipart" in (await answer.json())["error"]["message"]
        async with session.get(f"{served.url}/files/..%2F..%2Fbatches.db/content") as answer:
            assert answer.status == 404


async def test_the_bounds_hold(tmp_path: Path) -> None:
    flags = ("--max-file-bytes", "1000", "--max-files", "3", "--max-batches", "1", "--max-requests", "2")
    served = ServeProcess(tmp_path / "home", *flags)
    await served.start()
    try:
        async with openai.AsyncOpenAI(base_url=served.url, api_key="unused", max_retries=0) as client:
            with pytest.raises(openai.APIStatusError, match="more than 1000 bytes"):
                await client.files.create(file=("jobs.jsonl", b"x" * 1001), purpose="batch")
            batch = await begin(client, input_lines([{}, {}, {}]))
            failed = await reached(client, batch.id, "failed")
            assert failed.errors is not None
            assert failed.errors.data is not None
            assert failed.errors.data[0].code == "too_many_requests"
            await begin(client, input_lines([{}, {}]))
            with pytest.raises(openai.RateLimitError, match="1 batches are under way"):
                await begin(client, input_lines([{}, {}]))
            with pytest.raises(openai.APIStatusError, match="delete some first"):
                await client.files.create(file=("jobs.jsonl", b"x"), purpose="batch")
        assert [path.name for path in (served.home / "files").iterdir() if path.suffix == ".part"] == []
    finally:
        await served.stop()


async def test_a_token_is_demanded_and_may_change(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    served = ServeProcess(tmp_path / "home", "--token-file", str(token))
    await served.start()
    try:
        async with openai.AsyncOpenAI(base_url=served.url, api_key="first", max_retries=0) as client:
            assert [batch async for batch in client.batches.list()] == []
            token.write_text("second\n")
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.batches.list()
            assert refused.value.code == "invalid_api_key"
            assert "first" not in str(refused.value)
        where = urlsplit(served.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(
            b"GET /v1/batches HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n"
        )
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert b" 401 " in answer.partition(b"\r\n")[0]
        assert b"invalid_api_key" in answer
        async with openai.AsyncOpenAI(base_url=served.url, api_key="second", max_retries=0) as client:
            assert [batch async for batch in client.batches.list()] == []
    finally:
        await served.stop()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--listen", "0.0.0.0:0"], "give --token-file"),
        (["--listen", "here"], "HOST:PORT"),
        (["--token-file", "/nowhere"], "/nowhere cannot be read"),
        (["--queue", "kafka://x"], "is no queue"),
    ],
)
def test_bad_flags_are_refused(tmp_path: Path, flags: list[str], says: str) -> None:
    done = subprocess.run(
        [*COMMAND, "serve", "--home", str(tmp_path), *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [*COMMAND, "serve", "--home", str(tmp_path / "file")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot be a folder to write in" in done.stderr
    assert "Traceback" not in done.stderr


async def test_one_process_at_a_time_has_a_home(served: ServeProcess) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, "serve", "--home", str(served.home), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "another `headroom-batch serve`" in done.stderr
