"""`headroom-batch submit` against `headroom-batch serve`."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batch_serving import COMMAND, AnsweringSubscriber, ServeProcess, input_lines

PATIENCE_S = 100.0


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServeProcess]:
    process = ServeProcess(tmp_path / "home")
    await process.start()
    yield process
    await process.stop()


def subscriber(served: ServeProcess) -> AnsweringSubscriber:
    return AnsweringSubscriber(f"sqlite:{served.home}/queue.db", f"file:{served.home}/results")


async def started(served: ServeProcess, file: Path, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND, "submit", str(file), "--server", served.url, *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def submitted(served: ServeProcess, file: Path, *flags: str) -> tuple[int | None, str, str]:
    process = await started(served, file, *flags)
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def job_file(folder: Path, count: int, **more: object) -> Path:
    file = folder / "jobs.jsonl"
    file.write_bytes(input_lines([{"model": "m", "n": number, **more} for number in range(count)]))
    return file


async def test_a_file_is_handed_in_watched_and_fetched(served: ServeProcess, tmp_path: Path) -> None:
    file = job_file(tmp_path, 30)
    async with subscriber(served):
        status, out, err = await submitted(served, file, "--watch")
    assert status == 0, err
    assert "completed: 30 done, 0 failed" in out
    lines = [json.loads(line) for line in (tmp_path / "jobs.output.jsonl").read_text().splitlines()]
    assert [line["response"]["body"]["echo"]["n"] for line in lines] == list(range(30))
    assert not (tmp_path / "jobs.errors.jsonl").exists()


async def test_after_ctrl_c_the_same_command_goes_on_with_the_batch(
    served: ServeProcess, tmp_path: Path
) -> None:
    file = job_file(tmp_path, 5)
    process = await started(served, file, "--watch")
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        handed_in = (await process.stdout.readline()).decode()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE_S):
        _, err = await process.communicate()
    assert process.returncode == 130
    assert b"The batch goes on" in err
    name = handed_in.split()[-1].rstrip(".")
    async with subscriber(served) as answering:
        status, out, _ = await submitted(served, file, "--watch")
    assert status == 0
    assert f"has been handed in as {name}" in out
    assert len(answering.taken) == 5


async def test_a_watch_outlives_a_restart_of_the_api(served: ServeProcess, tmp_path: Path) -> None:
    file = job_file(tmp_path, 5)
    process = await started(served, file, "--watch")
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        await process.stdout.readline()
        await served.kill()
        await served.start()
        async with subscriber(served):
            await process.communicate()
    assert process.returncode == 0


async def test_failed_requests_are_in_the_errors_file(served: ServeProcess, tmp_path: Path) -> None:
    file = job_file(tmp_path, 2, fail=True)
    async with subscriber(served):
        status, out, _ = await submitted(served, file, "--watch")
    assert status == 1
    assert "0 done, 2 failed" in out
    assert len((tmp_path / "jobs.errors.jsonl").read_text().splitlines()) == 2


async def test_a_changed_file_and_again_are_new_batches(served: ServeProcess, tmp_path: Path) -> None:
    file = job_file(tmp_path, 1)
    first = await submitted(served, file)
    same = await submitted(served, file)
    again = await submitted(served, file, "--again")
    changed = await submitted(served, job_file(tmp_path, 2))
    assert [status for status, _, _ in (first, same, again, changed)] == [0, 0, 0, 0]
    assert "has been handed in as" in same[1]
    assert all("Handed in as batch_" in out for _, out, _ in (first, again, changed))
    assert len({out for _, out, _ in (first, again, changed)}) == 3


async def test_a_bad_file_is_refused_line_by_line_before_it_is_sent(
    served: ServeProcess, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(input_lines([{"model": "m"}]) + b"nonsense\n" + b'{"custom_id":"b","method":"PUT"}\n')
    status, _, err = await submitted(served, file)
    assert status == 2
    assert err.splitlines() == [f"{file}:2: line: is no JSON", f'{file}:3: method: must be "POST"']
    status, _, err = await submitted(served, tmp_path / "nowhere.jsonl")
    assert (status, err) == (2, f"{tmp_path / 'nowhere.jsonl'}: No such file or directory\n")


async def test_what_is_no_batches_api_is_named(served: ServeProcess, tmp_path: Path) -> None:
    file = job_file(tmp_path, 1)
    status, _, err = await submitted(served, file, "--server", served.url + "/wrong")
    assert status == 1
    assert "There is no POST /v1/wrong/files" in err
    status, _, err = await submitted(served, file, "--server", "http://127.0.0.1:1/v1")
    assert status == 1
    assert "does not answer" in err
