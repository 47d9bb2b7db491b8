"""Results in Redis, PostgreSQL and object stores, and published to a topic."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from batch_contracts import PATIENCE_S, CancellationsContract, StoreContract, make_job, make_result
from batch_servers import ObjectServer, PostgresServer, PubSubFake, RedisServer
from batch_subscriber import pubsub_wire as wire
from batch_subscriber.errors import ConfigurationError, StoreUnavailableError
from batch_subscriber.opening import open_cancellations, open_results
from batch_subscriber.redis_link import RedisLink, redis_url
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.wire import decode_result
from lean_grpc import Channel

_numbers = itertools.count()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.make("s3cret")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres: PostgresServer, tmp_path: Path) -> str:
    (tmp_path / "password").write_text("s3cret\n")
    return f"{postgres.url}?password_file={tmp_path / 'password'}"


@pytest.fixture
async def objects(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    server = ObjectServer()
    await server.start()
    yield server
    await server.stop()


class TestRedisResults(StoreContract):
    @pytest.fixture
    async def store(self, redis: RedisServer) -> AsyncIterator[ResultStore]:
        made = await open_results(f"{redis.url}?results=r{next(_numbers)}")
        yield made
        await made.close()


class TestMemoryResults(StoreContract):
    @pytest.fixture
    async def store(self) -> ResultStore:
        return await open_results("memory:")


class TestObjectResults(StoreContract):
    @pytest.fixture
    async def store(self, objects: ObjectServer) -> ResultStore:
        return await open_results(f"s3://bucket/some/prefix?region=eu-1&endpoint={objects.endpoint}")


class TestPostgresResults(StoreContract):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[ResultStore]:
        made = await open_results(postgres_url)
        yield made
        await made._call("execute", "TRUNCATE headroom_batch_results")  # type: ignore[attr-defined]
        await made.close()


class TestPostgresCancellations(CancellationsContract):
    @pytest.fixture
    async def cancellations(self, postgres_url: str) -> AsyncIterator[object]:
        made = await open_cancellations(postgres_url)
        yield made
        await made.close()


async def test_postgres_may_restart(postgres: PostgresServer, postgres_url: str) -> None:
    store = await open_results(postgres_url)
    job = make_job(7)
    try:
        assert await store.write(make_result(job))
        postgres.kill()
        with pytest.raises(StoreUnavailableError):
            await store.exists(job.id, job.generation)
        postgres.start()
        assert await _in_time(store, job.id, job.generation)
    finally:
        await store.close()


async def _in_time(store: ResultStore, job_id: str, generation: str) -> bool:
    """Ask until the server has recovered; the test's time limit ends it."""
    while True:
        try:
            return await store.exists(job_id, generation)
        except StoreUnavailableError:
            await asyncio.sleep(0.05)


async def test_a_wrong_password_of_postgres_is_unavailable_and_not_shown(postgres: PostgresServer) -> None:
    store = await open_results(postgres.url.replace("headroom@", "headroom:wr0ng@"))
    try:
        with pytest.raises(StoreUnavailableError) as refused:
            await store.write(make_result(make_job()))
        assert "wr0ng" not in str(refused.value)
    finally:
        await store.close()


async def test_an_object_has_a_legible_name_below_the_prefix(objects: ObjectServer) -> None:
    store = await open_results(f"s3://bucket/some/prefix/?region=eu-1&endpoint={objects.endpoint}")
    await store.write(make_result(make_job(id="a/b")))
    (name,) = objects.objects
    assert name.startswith("bucket/some/prefix/")
    assert name.split("/")[-1].startswith("a_b-")


async def test_an_object_store_that_refuses_is_unavailable(objects: ObjectServer) -> None:
    store = await open_results(f"s3://bucket?region=eu-1&endpoint={objects.endpoint}")
    objects.is_down = True
    with pytest.raises(StoreUnavailableError):
        await store.write(make_result(make_job()))
    with pytest.raises(StoreUnavailableError):
        await store.exists("a", "b")
    objects.is_down = False
    assert await store.write(make_result(make_job()))


async def test_results_in_redis_come_on_a_stream_once_each(redis: RedisServer) -> None:
    store = await open_results(f"{redis.url}?results=streamed&topic=answers&keep_days=1")
    link = RedisLink(redis_url(redis.url, (), ()), StoreUnavailableError)
    try:
        results = [make_result(make_job(number)) for number in range(3)]
        for result in [*results, *results]:
            await store.write(result)
        entries = await link.command("XRANGE", "headroom:{streamed}:answers", "-", "+")
        assert [decode_result(values[b"result"]) for _, values in entries] == results
    finally:
        await store.close()
        await link.close()


async def test_results_are_published_and_again_when_their_job_comes_again(tmp_path: Path) -> None:
    fake = PubSubFake(tmp_path)
    topic, subscription = "projects/p/topics/answers", "projects/p/subscriptions/answers"
    store = await open_results(f"pubsub://p/answers?endpoint={fake.endpoint}&store=file:{tmp_path}/results")
    try:
        async with Channel(fake.endpoint) as channel:
            await channel.unary(
                "/google.pubsub.v1.Publisher/CreateTopic", wire.text(1, topic), timeout=PATIENCE_S
            )
            made = wire.text(1, subscription) + wire.text(2, topic) + wire.number(5, 10)
            await channel.unary("/google.pubsub.v1.Subscriber/CreateSubscription", made, timeout=PATIENCE_S)
            result = make_result(make_job())
            assert not await store.exists(result.job_id, result.generation)
            assert await store.write(result)
            assert await store.exists(result.job_id, result.generation)
            messages: list[wire.Message] = []
            while len(messages) < 2:
                answer = await channel.unary(
                    wire.PULL, wire.pull_request(subscription, 10), timeout=PATIENCE_S
                )
                messages += wire.received(answer)
        assert [decode_result(message.data) for message in messages] == [result, result]
        assert len({message.attributes["key"] for message in messages}) == 1
    finally:
        await store.close()
        fake.stop()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://bucket?colour=red", "unknown parameter colour; it may have endpoint, region"),
        ("s3://key:s3cret@bucket", "without credentials"),
        ("gs:///x", "gs://BUCKET"),
        ("postgresql://h:s3cret@x", "must name a database"),
        ("postgresql://h@x/db?password_file=/nowhere", "password_file=/nowhere cannot be read"),
        ("pubsub://p/t", "needs store=URL"),
    ],
)
async def test_a_wrong_url_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await open_results(url)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)
