"""The embedded queue: what every queue does, and what a file shared by processes adds."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from batch_contracts import CancellationsContract, DeadLettersContract, QueueContract, make_job
from batch_subscriber.errors import ConfigurationError, QueueFullError, QueueUnavailableError
from batch_subscriber.jobs import Cause
from batch_subscriber.opening import open_queue
from batch_subscriber.queues.sqlite import SqliteQueue


class Clock:
    """A Unix time that stands still."""

    now = 10_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def queue(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteQueue]:
    made = SqliteQueue(tmp_path / "queue.db", clock=clock)
    yield made
    await made.close()


@pytest.fixture
def dead(queue: SqliteQueue) -> SqliteQueue:
    return queue


@pytest.fixture
def cancellations(queue: SqliteQueue) -> SqliteQueue:
    return queue


class TestSqliteQueue(QueueContract, DeadLettersContract, CancellationsContract):
    @pytest.fixture(autouse=True)
    def _take_clock(self, clock: Clock) -> None:
        self.clock = clock

    @override
    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


async def test_deliveries_are_counted(queue: SqliteQueue, clock: Clock) -> None:
    await queue.put([make_job()])
    counts = []
    for _ in range(3):
        (delivery,) = await queue.receive(1, 5.0, 0.0)
        counts.append(delivery.deliveries)
        clock.now += 6.0
    assert counts == [1, 2, 3]


async def test_a_job_that_comes_again_keeps_its_place(queue: SqliteQueue, clock: Clock) -> None:
    await queue.put([make_job(1), make_job(2), make_job(3)])
    (first,) = await queue.receive(1, 5.0, 0.0)
    clock.now += 6.0
    assert [one.job.id for one in await queue.receive(3, 5.0, 0.0)] == ["job-1", "job-2", "job-3"]
    assert not await queue.ack(first)


async def test_a_job_that_is_put_twice_is_one(queue: SqliteQueue) -> None:
    await queue.put([make_job(), make_job()])
    await queue.put([make_job()])
    assert len(await queue.receive(5, 60.0, 0.0)) == 1


async def test_a_full_queue_accepts_none_of_what_is_put(tmp_path: Path) -> None:
    queue = await open_queue(f"sqlite:{tmp_path}/q.db?max_jobs=3")
    await queue.put([make_job(1), make_job(2)])
    with pytest.raises(QueueFullError, match="4 jobs"):
        await queue.put([make_job(3), make_job(4)])
    await queue.put([make_job(3)])
    assert (await queue.backlog()).waiting == 3
    await queue.close()


async def test_bytes_are_bounded_and_freed(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", max_bytes=3000)
    await queue.put([make_job(1, body=b"x" * 2000)])
    with pytest.raises(QueueFullError):
        await queue.put([make_job(2, body=b"x" * 2000)])
    (delivery,) = await queue.receive(1, 60.0, 0.0)
    await queue.ack(delivery)
    await queue.put([make_job(2, body=b"x" * 2000)])
    await queue.close()


async def test_another_process_sees_what_was_put_and_what_is_held(tmp_path: Path) -> None:
    one, other = SqliteQueue(tmp_path / "q.db"), SqliteQueue(tmp_path / "q.db")
    waiting = asyncio.create_task(other.receive(1, 60.0, 30.0))
    await one.put([make_job(1)])
    assert [delivery.job.id for delivery in await waiting] == ["job-1"]
    await one.put([make_job(2)])
    assert [delivery.job.id for delivery in await one.receive(5, 60.0, 0.0)] == ["job-2"]
    await one.close()
    await other.close()


async def test_what_is_no_job_becomes_a_dead_letter(queue: SqliteQueue, tmp_path: Path) -> None:
    await queue.put([make_job(1), make_job(2)])
    with sqlite3.connect(tmp_path / "queue.db") as foreign:
        foreign.execute("UPDATE jobs SET data = ? WHERE id = 'job-1'", (b"{}",))
    foreign.close()
    assert [delivery.job.id for delivery in await queue.receive(5, 60.0, 0.0)] == ["job-2"]
    (letter,) = await queue.letters(10)
    assert (letter.cause, letter.raw, letter.job) == (Cause.MALFORMED, b"{}", None)
    assert "id: is missing" in letter.detail


async def test_many_calls_share_transactions_and_each_has_its_answer(queue: SqliteQueue) -> None:
    await asyncio.gather(*(queue.put([make_job(number)]) for number in range(300)))
    held = await queue.receive(300, 60.0, 0.0)
    stale = replace(held[0], handle="1/9")
    answers = await asyncio.gather(*(queue.ack(one) for one in [*held, stale]))
    assert answers == [True] * 300 + [False]
    backlog = await queue.backlog()
    assert (backlog.waiting, backlog.held, backlog.oldest_submitted_at) == (0, 0, None)


async def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "q.db") as foreign:
        foreign.execute("PRAGMA user_version=7")
    foreign.close()
    queue = SqliteQueue(tmp_path / "q.db")
    with pytest.raises(ConfigurationError, match="layout 7"):
        await queue.put([make_job()])
    await queue.close()


async def test_a_file_that_cannot_be_made_is_unavailable_and_may_come(tmp_path: Path) -> None:
    (tmp_path / "sub").write_text("a file where the folder should be")
    queue = SqliteQueue(tmp_path / "sub" / "q.db")
    with pytest.raises(QueueUnavailableError):
        await queue.put([make_job()])
    (tmp_path / "sub").unlink()
    await queue.put([make_job()])
    assert len(await queue.receive(1, 60.0, 0.0)) == 1
    await queue.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("amqp://host/x", "must begin with"),
        ("queue.db", "must begin with"),
        ("sqlite://host/q.db", "without a host"),
        ("sqlite:", "without a host"),
        ("sqlite:/q.db?max_job=1", "unknown parameter max_job"),
        ("sqlite:/q.db?max_jobs=-1", "whole number"),
    ],
)
async def test_a_url_that_names_no_queue_says_what_would(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        await open_queue(url)
