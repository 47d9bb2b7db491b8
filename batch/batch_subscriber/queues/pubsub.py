"""A queue in Google Pub/Sub: a topic, a subscription, and a topic for dead letters.

Messages come by streaming pull; Pub/Sub stops sending when as many are unacknowledged as the flow control
allows. Deadlines of messages that a process holds are extended, in steps that Pub/Sub takes, until the
visibility time-out that the worker asked for, and never beyond `max_hold_s` after the delivery. A job that
comes again with a change (a failure, a long delay) is published anew before the old message is acknowledged.
"""

import asyncio
import contextlib
import hashlib
import itertools
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from batch_subscriber import pubsub_wire as wire
from batch_subscriber.errors import ConfigurationError, JobError, QueueUnavailableError
from batch_subscriber.jobs import Cause, DeadLetter, Job, dead_letter_key
from batch_subscriber.pubsub_link import PubSubLink, PubSubUrl, pubsub_url
from batch_subscriber.queues.interface import Backlog, DeadLetters, Delivery, JobQueue
from batch_subscriber.wire import decode_job, decode_letter, encode_job, encode_letter
from lean_grpc import CallError

#: Flow control unless the URL says otherwise: unacknowledged messages and bytes of one process.
MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 100_000_000
MAX_HOLD_S: Final = 3600
#: The longest deadline that Pub/Sub takes, seconds.
MAX_DEADLINE_S: Final = 600
#: The deadline of messages that wait in this process for a worker, seconds.
WAITING_DEADLINE_S: Final = 60
#: How often deadlines are looked after; a deadline is extended when it ends within the margin, seconds.
TICK_S: Final = 5.0
MARGIN_S: Final = 20.0
_FIRST_RETRY_S: Final = 0.2
_LAST_RETRY_S: Final = 10.0
#: Dead letters that are looked through, at most.
MAX_LETTERS: Final = 10_000

NOT_BEFORE: Final = "headroom-not-before"


@dataclass(slots=True)
class _Lease:
    """A message that this process holds."""

    message: wire.Message
    since: float
    until: float
    """When it may come again, as the worker asked."""
    deadline: float
    """When Pub/Sub sends it again unless it is extended."""


class PubSubQueue(JobQueue, DeadLetters):
    """A subscription and its topic. Dead letters are read from a subscription of their topic."""

    def __init__(self, url: PubSubUrl, *, clock: Callable[[], float] = time.time) -> None:
        """Use the subscription of `url`. Raises ConfigurationError."""
        for needed in ("topic", "dead_topic"):
            if needed not in url.names:
                msg = f"pubsub://{url.project}/{url.name} needs {needed}=TOPIC"
                raise ConfigurationError(msg)
        self._link = PubSubLink(url, QueueUnavailableError)
        self._subscription = self._link.subscription(url.name)
        self._topic = self._link.topic(url.names["topic"])
        self._dead_topic = self._link.topic(url.names["dead_topic"])
        dead = url.names.get("dead_subscription", "")
        self._dead_subscription = self._link.subscription(dead) if dead else ""
        self._max_messages = url.limits.get("max_messages", MAX_MESSAGES)
        self._max_bytes = url.limits.get("max_bytes", MAX_BYTES)
        self._max_hold_s = url.limits.get("max_hold_s", MAX_HOLD_S)
        self._clock = clock
        self._waiting: deque[_Lease] = deque()
        self._held: dict[str, _Lease] = {}
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._fault: QueueUnavailableError | None = None
        self._acks: dict[str, asyncio.Future[None]] = {}
        self._acking: asyncio.Task[None] | None = None

    @override
    async def put(self, jobs: Sequence[Job]) -> None:
        await self._link.publish(self._topic, [(encode_job(job), {}) for job in jobs])

    @override
    async def receive(self, limit: int, visibility_s: float, wait_s: float) -> list[Delivery]:
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._stream()), loop.create_task(self._look_after())]
        until = asyncio.get_running_loop().time() + wait_s
        while True:
            if taken := await self._take(limit, visibility_s):
                return taken
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                if self._fault is not None:
                    raise self._fault
                return []
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._arrived.wait()

    async def _take(self, limit: int, visibility_s: float) -> list[Delivery]:
        now = self._clock()
        taken: list[Delivery] = []
        later: dict[int, list[str]] = {}
        while self._waiting and len(taken) < limit:
            lease = self._waiting.popleft()
            if lease.deadline <= now:
                continue
            delay = _not_before(lease.message) - now
            if delay > 0:
                later.setdefault(min(MAX_DEADLINE_S, math.ceil(delay)), []).append(lease.message.ack_id)
                continue
            if (delivery := await self._delivery(lease.message)) is not None:
                lease.until = now + min(visibility_s, self._max_hold_s)
                self._held[delivery.handle] = lease
                taken.append(delivery)
        self._make_room()
        for seconds, ack_ids in later.items():
            await self._link.set_deadline(self._subscription, ack_ids, seconds)
        if taken:
            await self._extend([self._held[delivery.handle] for delivery in taken], now)
        return taken

    async def _delivery(self, message: wire.Message) -> Delivery | None:
        try:
            job = decode_job(
                message.data, generation=message.message_id, submitted_at=round(message.published_at, 3)
            )
        except JobError as fault:
            letter = DeadLetter(
                key=hashlib.sha256(message.data).hexdigest()[:16],
                cause=Cause.MALFORMED, detail=str(fault), at=self._clock(), job=None, raw=message.data,
                deliveries=message.attempt,
            )  # fmt: skip
            await self._bury(letter)
            await self._acknowledge(message.ack_id)
            return None
        # Without a dead-letter policy Pub/Sub does not count: the job may have been delivered before.
        return Delivery(job, f"{message.ack_id}#{next(self._numbers)}", message.attempt or 2)

    @override
    async def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> set[str]:
        now = self._clock()
        leases = {delivery.handle: self._lease(delivery, now) for delivery in deliveries}
        lost = {handle for handle, lease in leases.items() if lease is None}
        kept = [lease for lease in leases.values() if lease is not None]
        for lease in kept:
            lease.until = min(now + visibility_s, lease.since + self._max_hold_s)
        await self._extend(kept, now)
        return lost

    def _lease(self, delivery: Delivery, now: float) -> _Lease | None:
        lease = self._held.get(delivery.handle)
        return lease if lease is not None and min(lease.until, lease.deadline) > now else None

    async def _extend(self, leases: Sequence[_Lease], now: float) -> None:
        """Bring Pub/Sub's deadlines to what the leases want, at most MAX_DEADLINE_S ahead."""
        groups: dict[int, list[_Lease]] = {}
        for lease in leases:
            seconds = min(MAX_DEADLINE_S, max(1, math.ceil(lease.until - now)))
            groups.setdefault(seconds, []).append(lease)
        for seconds, group in groups.items():
            ack_ids = [lease.message.ack_id for lease in group]
            await self._link.set_deadline(self._subscription, ack_ids, seconds)
            for lease in group:
                lease.deadline = now + seconds

    @override
    async def ack(self, delivery: Delivery) -> bool:
        lease = self._lease(delivery, self._clock())
        if lease is None:
            return False
        await self._acknowledge(lease.message.ack_id)
        self._forget(delivery)
        return True

    @override
    async def nack(self, delivery: Delivery, job: Job, delay_s: float) -> None:
        now = self._clock()
        lease = self._lease(delivery, now)
        if lease is None:
            return
        if job == delivery.job and delay_s <= MAX_DEADLINE_S:
            await self._link.set_deadline(self._subscription, [lease.message.ack_id], math.ceil(delay_s))
        else:
            attributes = {NOT_BEFORE: f"{now + delay_s:.3f}"} if delay_s > 0 else {}
            await self._link.publish(self._topic, [(encode_job(job), attributes)])
            await self._acknowledge(lease.message.ack_id)
        self._forget(delivery)

    @override
    async def dead_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        await self._bury(letter)
        lease = self._lease(delivery, self._clock())
        if lease is not None:
            await self._acknowledge(lease.message.ack_id)
            self._forget(delivery)

    async def _bury(self, letter: DeadLetter) -> None:
        await self._link.publish(self._dead_topic, [(encode_letter(letter), {"key": letter.key})])

    def _forget(self, delivery: Delivery) -> None:
        self._held.pop(delivery.handle, None)
        self._make_room()

    async def _acknowledge(self, ack_id: str) -> None:
        """Acknowledge together with what else is to be acknowledged while a request is under way."""
        loop = asyncio.get_running_loop()
        done = self._acks.setdefault(ack_id, loop.create_future())
        if self._acking is None or self._acking.done():
            self._acking = loop.create_task(self._send_acks())
        await asyncio.shield(done)

    async def _send_acks(self) -> None:
        while self._acks:
            acks, self._acks = self._acks, {}
            try:
                await self._link.acknowledge(self._subscription, list(acks))
            except QueueUnavailableError as failure:
                for done in acks.values():
                    done.set_exception(failure)
                    done.exception()  # a caller that was cancelled does not read it
            else:
                for done in acks.values():
                    done.set_result(None)

    @override
    async def backlog(self) -> Backlog:
        """Return that it is not known: Pub/Sub counts in Cloud Monitoring alone."""
        return Backlog(None, None, None)

    @override
    async def letters(self, limit: int, after: str = "") -> list[DeadLetter]:
        found = await self._all_letters()
        return [found[key] for key in sorted(found) if key > after][:limit]

    @override
    async def letter(self, key: str) -> DeadLetter | None:
        return (await self._all_letters()).get(key)

    @override
    async def drop(self, key: str) -> bool:
        return key in await self._all_letters(drop=key)

    async def _all_letters(self, drop: str = "") -> dict[str, DeadLetter]:
        """Look through the dead letters and give them back; acknowledge those with the key `drop`."""
        if not self._dead_subscription:
            raise ConfigurationError("to read dead letters the queue's URL needs dead_subscription=NAME")
        found: dict[str, DeadLetter] = {}
        ack_ids: list[str] = []
        doomed: list[str] = []
        while len(ack_ids) + len(doomed) < MAX_LETTERS and (
            messages := await self._link.pull(self._dead_subscription, 1000)
        ):
            for message in messages:
                letter = _letter(message)
                found.setdefault(letter.key, letter)
                (doomed if letter.key == drop else ack_ids).append(message.ack_id)
        await self._link.acknowledge(self._dead_subscription, doomed)
        await self._link.set_deadline(self._dead_subscription, ack_ids, 0)
        return found

    @override
    async def close(self) -> None:
        if self._acking is not None:
            await asyncio.gather(self._acking, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        waiting = [lease.message.ack_id for lease in self._waiting]
        with contextlib.suppress(QueueUnavailableError):
            await self._link.set_deadline(self._subscription, waiting, 0)
        await self._link.close()

    async def _stream(self) -> None:
        """Keep a streaming pull open; Pub/Sub ends each one after a while."""
        client = f"{socket.gethostname()}-{os.getpid()}"
        first = wire.streaming_request(
            self._subscription, WAITING_DEADLINE_S, client, self._max_messages, self._max_bytes
        )
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                async with await self._link.stream(self._subscription) as stream:
                    await stream.send(first)
                    async for payload in stream:
                        retry_s, self._fault = _FIRST_RETRY_S, None
                        self._keep(payload)
                        await self._room.wait()
                    failure = QueueUnavailableError(f"{self._subscription}: the stream ended")
            except (CallError, ValueError) as error:
                failure = QueueUnavailableError(f"{self._subscription}: {error}")
            except QueueUnavailableError as error:
                failure = error
            self._fault = failure
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _keep(self, payload: bytes) -> None:
        now = self._clock()
        for message in wire.received(payload):
            until = now + self._max_hold_s
            self._waiting.append(_Lease(message, now, until, now + WAITING_DEADLINE_S))
        self._arrived.set()
        self._make_room()

    def _make_room(self) -> None:
        """Stop reading the stream at the bound: a fake server does not count what is outstanding."""
        if len(self._waiting) + len(self._held) < self._max_messages:
            self._room.set()
        else:
            self._room.clear()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            with contextlib.suppress(QueueUnavailableError):
                await self.tick()

    async def tick(self) -> None:
        """Extend the deadlines that end soon and are to go on; forget what has gone back to Pub/Sub."""
        now = self._clock()
        for handle in [name for name, lease in self._held.items() if min(lease.until, lease.deadline) <= now]:
            del self._held[handle]
        self._waiting = deque(lease for lease in self._waiting if lease.deadline > now)
        self._make_room()
        soon = now + MARGIN_S
        await self._extend(
            [lease for lease in self._held.values() if lease.deadline < min(soon, lease.until)], now
        )
        waiting = [lease for lease in self._waiting if lease.deadline < min(soon, lease.until)]
        if waiting:
            ack_ids = [lease.message.ack_id for lease in waiting]
            await self._link.set_deadline(self._subscription, ack_ids, WAITING_DEADLINE_S)
            for lease in waiting:
                lease.deadline = now + WAITING_DEADLINE_S


def _not_before(message: wire.Message) -> float:
    try:
        return float(message.attributes.get(NOT_BEFORE, "0"))
    except ValueError:
        return 0.0


def _letter(message: wire.Message) -> DeadLetter:
    """Return the letter of a message: one that this queue published, or one that Pub/Sub moved itself."""
    try:
        return decode_letter(message.data)
    except ValueError:
        pass
    count = message.attributes.get("CloudPubSubDeadLetterSourceDeliveryCount", "0")
    deliveries = int(count) if count.isdigit() and len(count) < 10 else 0
    try:
        job = decode_job(message.data, generation=message.message_id, submitted_at=message.published_at)
    except JobError as fault:
        key = hashlib.sha256(message.data).hexdigest()[:16]
        return DeadLetter(
            key=key, cause=Cause.MALFORMED, detail=str(fault), at=message.published_at, job=None,
            raw=message.data, deliveries=deliveries,
        )  # fmt: skip
    return DeadLetter(
        key=dead_letter_key(job),
        cause=Cause.POISON,
        detail="moved by Pub/Sub's dead-letter policy",
        at=message.published_at,
        job=job,
        deliveries=deliveries,
    )


async def open_queue(url: str) -> PubSubQueue:
    """Return the queue of `pubsub://PROJECT/SUBSCRIPTION?topic=NAME&dead_topic=NAME`.

    Further parameters: dead_subscription, max_messages, max_bytes, max_hold_s, token_file, endpoint. Raises
    ConfigurationError.
    """
    names = ("topic", "dead_topic", "dead_subscription")
    return PubSubQueue(pubsub_url(url, names, ("max_messages", "max_bytes", "max_hold_s")))
