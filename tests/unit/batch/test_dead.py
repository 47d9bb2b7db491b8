"""`headroom-batch dead`, as a user runs it."""

import asyncio
import json
from pathlib import Path

import pytest

from batch_contracts import make_job, make_letter
from batch_subscriber import main
from batch_subscriber.queues.sqlite import SqliteQueue


async def _bury(path: Path, count: int) -> None:
    queue = SqliteQueue(path)
    secret = (("authorization", "Bearer s3cret"),)
    await queue.put([make_job(number, headers=secret) for number in range(count)])
    for delivery in await queue.receive(count, 60.0, 0.0):
        await queue.dead_letter(delivery, make_letter(delivery))
    await queue.close()


async def _waiting(path: Path) -> list[str]:
    queue = SqliteQueue(path)
    got = await queue.receive(100, 60.0, 0.0)
    await queue.close()
    return sorted(delivery.job.id for delivery in got)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    asyncio.run(_bury(tmp_path / "q.db", 3))
    return tmp_path / "q.db"


def dead(path: Path, *arguments: str) -> int:
    return main.run(["dead", "--queue", f"sqlite:{path}", *arguments])


def keys(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert dead(path, "list", "--json") == 0
    return [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]


def test_list_has_a_line_for_each_letter(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dead(path, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("exhausted" in line and "1970-01-01T00:25:00Z" in line for line in lines)


def test_show_has_the_request_and_no_value_of_a_header(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (key, *_) = keys(path, capsys)
    assert dead(path, "show", key) == 0
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert shown["path"] == "/v1/completions"
    assert json.loads(shown["body"]) == {"model": "m", "prompt": "ä"}
    assert [failure["cause"] for failure in shown["failures"]] == ["502"]
    assert "s3cret" not in text


def test_replay_puts_a_job_back(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = keys(path, capsys)
    assert dead(path, "replay", first) == 0
    capsys.readouterr()
    assert first not in keys(path, capsys)
    assert len(asyncio.run(_waiting(path))) == 1


def test_replay_of_all_puts_all_back(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dead(path, "replay", "--all", "--cause", "refused") == 0
    capsys.readouterr()
    assert len(keys(path, capsys)) == 3
    assert dead(path, "replay", "--all", "--cause", "exhausted") == 0
    assert asyncio.run(_waiting(path)) == ["job-0", "job-1", "job-2"]


def test_drop_removes_for_good(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = keys(path, capsys)
    assert dead(path, "drop", first) == 0
    assert dead(path, "drop", first) == 1
    assert "no dead letter" in capsys.readouterr().err
    assert len(keys(path, capsys)) == 2


def test_a_queue_that_is_none_is_a_bad_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["dead", "--queue", "x:/y", "list"]) == 2
    assert "must begin with" in capsys.readouterr().err
