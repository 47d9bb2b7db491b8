"""The queue in Pub/Sub, against Google's fake server."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from typing_extensions import override

from batch_contracts import MOMENT_S, PATIENCE_S, DeadLettersContract, QueueContract, make_job
from batch_servers import PubSubFake
from batch_subscriber import pubsub_wire as wire
from batch_subscriber.errors import ConfigurationError, QueueUnavailableError
from batch_subscriber.jobs import Cause, DeadLetter
from batch_subscriber.opening import open_queue as open_by_url
from batch_subscriber.pubsub_link import pubsub_url
from batch_subscriber.queues.interface import Delivery, JobQueue
from batch_subscriber.queues.pubsub import PubSubQueue
from lean_grpc import Channel

_numbers = itertools.count()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSubFake]:
    running = PubSubFake(tmp_path_factory.mktemp("pubsub"))
    yield running
    running.stop()


async def make_topic(channel: Channel, name: str, policy: bytes = b"") -> None:
    topic = f"projects/p/topics/{name}"
    await channel.unary("/google.pubsub.v1.Publisher/CreateTopic", wire.text(1, topic), timeout=PATIENCE_S)
    subscription = wire.text(1, f"projects/p/subscriptions/{name}") + wire.text(2, topic) + wire.number(5, 10)
    await channel.unary(
        "/google.pubsub.v1.Subscriber/CreateSubscription", subscription + policy, timeout=PATIENCE_S
    )


class Stage:
    """A queue with its topics, and the clock that it shares with the server."""

    def __init__(self, fake: PubSubFake, number: int) -> None:
        self.fake = fake
        self.name = f"jobs-{number}"
        self.dead = f"dead-{number}"

    @property
    def url(self) -> str:
        return (
            f"pubsub://p/{self.name}?topic={self.name}&dead_topic={self.dead}&dead_subscription={self.dead}"
            f"&endpoint={self.fake.endpoint}"
        )

    def open(self, more: str = "") -> PubSubQueue:
        names = ("topic", "dead_topic", "dead_subscription")
        place = pubsub_url(self.url + more, names, ("max_messages", "max_hold_s"))
        return PubSubQueue(place, clock=self.fake.clock)


@pytest.fixture
async def stage(fake: PubSubFake) -> Stage:
    made = Stage(fake, next(_numbers))
    async with Channel(fake.endpoint) as channel:
        await make_topic(channel, made.dead)
        await make_topic(channel, made.name)
    return made


@pytest.fixture
async def queue(stage: Stage) -> AsyncIterator[PubSubQueue]:
    opened = stage.open()
    yield opened
    await opened.close()


@pytest.fixture
def dead(queue: PubSubQueue) -> PubSubQueue:
    return queue


class TestQueue(QueueContract):
    short_s = 10.0

    @pytest.fixture(autouse=True)
    def _clock(self, fake: PubSubFake) -> None:
        self._fake = fake

    @override
    async def pass_time(self, seconds: float) -> None:
        self._fake.advance(seconds)


class TestDeadLetters(DeadLettersContract):
    pass


async def test_a_long_job_is_extended_to_the_cap_and_then_comes_again(stage: Stage) -> None:
    # The fake forgets undelivered messages after ten minutes: the cap is below it.
    queue = stage.open("&max_hold_s=300")
    try:
        await queue.put([make_job()])
        (delivery,) = await queue.receive(1, 60.0, PATIENCE_S)
        for _ in range(8):
            stage.fake.advance(30.0)
            assert await queue.extend([delivery], 60.0) == set()
        assert await queue.receive(1, 60.0, MOMENT_S) == []
        stage.fake.advance(60.0)
        assert await queue.extend([delivery], 60.0) == {delivery.handle}
        (again,) = await queue.receive(1, 60.0, PATIENCE_S)
        assert again.job == delivery.job
        assert not await queue.ack(delivery)
        assert await queue.ack(again)
    finally:
        await queue.close()


async def test_a_time_out_above_pubsubs_longest_deadline_is_kept_in_steps(
    queue: PubSubQueue, stage: Stage
) -> None:
    await queue.put([make_job()])
    (delivery,) = await queue.receive(1, 1500.0, PATIENCE_S)
    for _ in range(2):
        stage.fake.advance(585.0)
        await queue.tick()
    assert await queue.receive(1, 30.0, MOMENT_S) == []
    assert await queue.ack(delivery)
    stage.fake.advance(700.0)
    assert await queue.receive(1, 30.0, MOMENT_S) == []


async def test_a_job_that_has_failed_waits_for_its_delay(queue: PubSubQueue, stage: Stage) -> None:
    await queue.put([make_job()])
    (delivery,) = await queue.receive(1, 60.0, PATIENCE_S)
    failed = delivery.job.failed(1.0, "503")
    await queue.nack(delivery, failed, 300.0)
    for _ in range(2):
        assert await queue.receive(1, 60.0, MOMENT_S) == []
        stage.fake.advance(120.0)
    assert await queue.receive(1, 60.0, MOMENT_S) == []
    stage.fake.advance(61.0)
    (again,) = await queue.receive(1, 60.0, PATIENCE_S)
    assert again.job == failed


async def test_no_more_is_held_than_the_flow_control_allows(stage: Stage) -> None:
    queue = stage.open("&max_messages=5")
    try:
        await queue.put([make_job(number) for number in range(12)])
        held: list[Delivery] = []
        while len(held) < 5:
            held += await queue.receive(10, 60.0, PATIENCE_S)
        assert len(held) == 5
        assert await queue.receive(10, 60.0, MOMENT_S) == []
        ended = 0
        while held:
            for delivery in held:
                assert await queue.ack(delivery)
            ended += len(held)
            held = await queue.receive(10, 60.0, PATIENCE_S) if ended < 12 else []
        assert ended == 12
    finally:
        await queue.close()


async def test_what_is_no_job_becomes_a_dead_letter(queue: PubSubQueue, stage: Stage) -> None:
    async with Channel(stage.fake.endpoint) as channel:
        topic = f"projects/p/topics/{stage.name}"
        foreign = b'{"id":"a","path":"/v1/completions","body":{"n":1}}'
        request = wire.publish_request(topic, [(b"no job", {}), (foreign, {"trace": "x"})])
        (_, name) = wire.published_ids(await channel.unary(wire.PUBLISH, request, timeout=PATIENCE_S))
    (delivery,) = await queue.receive(5, 60.0, PATIENCE_S)
    assert (delivery.job.id, delivery.job.generation, delivery.job.body) == ("a", name, b'{"n":1}')
    while not (letters := await queue.letters(10)):
        assert await queue.receive(5, 60.0, MOMENT_S) == []
    assert [(letter.cause, letter.raw) for letter in letters] == [(Cause.MALFORMED, b"no job")]


async def test_a_job_that_pubsub_moved_itself_is_a_letter(fake: PubSubFake) -> None:
    stage = Stage(fake, next(_numbers))
    policy = wire.text(1, f"projects/p/topics/{stage.dead}") + wire.number(2, 5)
    async with Channel(fake.endpoint) as channel:
        await make_topic(channel, stage.dead)
        await make_topic(channel, stage.name, wire.block(13, policy))
    queue = stage.open()
    try:
        await queue.put([make_job()])
        for attempt in range(1, 6):
            (delivery,) = await queue.receive(1, 10.0, PATIENCE_S)
            assert delivery.deliveries == attempt
            fake.advance(11.0)
        assert await queue.receive(1, 10.0, MOMENT_S) == []
        letter = await _first_letter(queue)
        assert (letter.cause, letter.job) == (Cause.POISON, make_job())
    finally:
        await queue.close()


async def _first_letter(queue: PubSubQueue) -> DeadLetter:
    while not (letters := await queue.letters(1)):
        pass
    return letters[0]


async def test_a_missing_subscription_is_named(stage: Stage) -> None:
    queue = await open_by_url(stage.url.replace(f"p/{stage.name}", "p/nowhere"))
    try:
        with pytest.raises(QueueUnavailableError, match="projects/p/subscriptions/nowhere"):
            await _receive_for_ever(queue)
    finally:
        await queue.close()


async def _receive_for_ever(queue: JobQueue) -> None:
    while True:
        assert await queue.receive(1, 60.0, MOMENT_S) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("pubsub://p", "pubsub://PROJECT/NAME"),
        ("pubsub://p/s?dead_topic=d", "needs topic="),
        ("pubsub://p/s?topic=t", "needs dead_topic="),
        ("pubsub://p/s?topic=t&dead_topic=d&colour=red", "colour=red is no parameter"),
        ("pubsub://p/s?topic=t&dead_topic=d&endpoint=x", "host:port"),
    ],
)
async def test_a_wrong_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        await open_by_url(url)
