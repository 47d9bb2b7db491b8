"""The queue in Redis, against the real server."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from batch_contracts import (
    MOMENT_S,
    PATIENCE_S,
    CancellationsContract,
    DeadLettersContract,
    QueueContract,
    make_job,
)
from batch_servers import RedisServer
from batch_subscriber.errors import ConfigurationError, QueueFullError, QueueUnavailableError
from batch_subscriber.jobs import Cause
from batch_subscriber.queues.redis_streams import RedisQueue, open_queue
from batch_subscriber.redis_link import RedisLink, redis_url

_names = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
async def queue(server: RedisServer) -> AsyncIterator[RedisQueue]:
    opened = await open_queue(f"{server.url}?queue=q{next(_names)}&max_jobs=50")
    yield opened
    await opened.close()


@pytest.fixture
def dead(queue: RedisQueue) -> RedisQueue:
    return queue


@pytest.fixture
def cancellations(queue: RedisQueue) -> RedisQueue:
    return queue


class TestQueue(QueueContract):
    short_s = 0.2


class TestDeadLetters(DeadLettersContract):
    pass


class TestCancellations(CancellationsContract):
    pass


@pytest.fixture
async def sender(server: RedisServer) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url(server.url, (), ()), QueueUnavailableError)
    yield link
    await link.close()


async def test_a_waiting_receiver_wakes_when_a_job_comes_and_when_a_delay_ends(queue: RedisQueue) -> None:
    waiting = asyncio.create_task(queue.receive(1, 60.0, PATIENCE_S))
    await queue.put([make_job(1)])
    (first,) = await waiting
    await queue.nack(first, first.job, 0.2)
    (again,) = await queue.receive(1, 60.0, PATIENCE_S)
    assert (again.job, again.deliveries) == (first.job, 2)


async def test_a_job_that_is_put_twice_is_one(queue: RedisQueue) -> None:
    await queue.put([make_job(1), make_job(1)])
    await queue.put([make_job(1), make_job(2)])
    assert (await queue.backlog()).waiting == 2


async def test_an_ended_job_may_be_put_again(queue: RedisQueue) -> None:
    await queue.put([make_job(1)])
    (delivery,) = await queue.receive(1, 60.0, PATIENCE_S)
    await queue.ack(delivery)
    await queue.put([make_job(1)])
    assert len(await queue.receive(1, 60.0, PATIENCE_S)) == 1


async def test_the_bound_counts_delayed_jobs_and_dead_letters(queue: RedisQueue) -> None:
    await queue.put([make_job(number) for number in range(49)])
    (delivery,) = await queue.receive(1, 60.0, PATIENCE_S)
    await queue.nack(delivery, delivery.job, 600.0)
    with pytest.raises(QueueFullError, match="headroom-batch dead drop"):
        await queue.put([make_job(100), make_job(101)])
    await queue.put([make_job(100)])
    assert (await queue.backlog()).waiting == 50


async def test_entries_of_other_senders_are_jobs_or_dead_letters(
    server: RedisServer, sender: RedisLink
) -> None:
    queue = await open_queue(f"{server.url}?queue=foreign")
    stream = "headroom:{foreign}:jobs"
    await sender.command("XADD", stream, "*", "job", b'{"id":"a","path":"/v1/completions","body":{"n":1}}')
    await sender.command("XADD", stream, "*", "job", b"no job")
    await sender.command("XADD", stream, "*", "other", b"field")
    (delivery,) = await queue.receive(10, 60.0, PATIENCE_S)
    assert (delivery.job.id, delivery.job.body) == ("a", b'{"n":1}')
    assert delivery.job.generation == delivery.handle.partition("/")[0]
    backlog = await queue.backlog()
    assert (backlog.waiting, backlog.held) == (0, 1)
    assert backlog.oldest_submitted_at == delivery.job.submitted_at
    letters = await queue.letters(10)
    assert sorted(letter.raw for letter in letters) == [b"", b"no job"]
    assert {letter.cause for letter in letters} == {Cause.MALFORMED}
    await queue.close()


async def test_deliveries_are_counted_over_time_outs_and_delays(queue: RedisQueue) -> None:
    await queue.put([make_job()])
    (first,) = await queue.receive(1, 0.01, PATIENCE_S)
    (second,) = await queue.receive(1, 60.0, PATIENCE_S)
    assert (first.deliveries, second.deliveries) == (1, 2)
    await queue.nack(second, second.job, 0.0)
    (third,) = await queue.receive(1, 60.0, PATIENCE_S)
    assert third.deliveries == 3
    assert await queue.extend([first, second, third], 60.0) == {first.handle, second.handle}
    assert not await queue.ack(first)
    assert await queue.ack(third)


async def test_jobs_survive_the_kill_of_the_server_and_the_queue_its_restart(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    queue = await open_queue(server.url)
    try:
        await queue.put([make_job(1), make_job(2)])
        (delivery,) = await queue.receive(1, 60.0, PATIENCE_S)
        server.kill()
        with pytest.raises(QueueUnavailableError):
            await queue.backlog()
        server.start()
        assert await queue.ack(delivery)
        (other,) = await queue.receive(5, 60.0, PATIENCE_S)
        assert other.job == make_job(2)
        assert await queue.receive(5, 60.0, MOMENT_S) == []
    finally:
        await queue.close()
        server.stop()


async def test_a_server_that_may_drop_keys_is_refused(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    queue = await open_queue(server.url)
    try:
        with pytest.raises(ConfigurationError, match="noeviction"):
            await queue.put([make_job()])
    finally:
        await queue.close()
        server.stop()


async def test_the_password_comes_from_a_file(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start("--requirepass", "s3cret")
    (tmp_path / "password").write_text("s3cret\n")
    queue = await open_queue(f"{server.url}?password_file={tmp_path / 'password'}")
    stranger = await open_queue(server.url)
    try:
        await queue.put([make_job()])
        with pytest.raises(QueueUnavailableError, match=r"(?i)auth"):
            await stranger.put([make_job()])
    finally:
        await queue.close()
        await stranger.close()
        server.stop()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis:///0", "HOST"),
        ("redis://h/0?max_jobs=0", "max_jobs=0"),
        ("redis://h/0?colour=red", "there are max_jobs, password_file, queue"),
        ("redis://user:s3cret@h/0?x=1", "'h/0"),
        ("redis://h/0?password_file=/nowhere", "password_file=/nowhere cannot be read"),
    ],
)
async def test_a_wrong_url_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await open_queue(url)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)
