"""A queue in Redis or Valkey: a stream with a consumer group, and beside it what a stream cannot do.

Jobs with a delay are in a sorted set until they are due; a job that is taken out of the stream for that keeps
its count of deliveries. A sender of another kind may XADD entries with one field, `job`.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from typing_extensions import override

from batch_subscriber.cancellations import Cancellations
from batch_subscriber.errors import JobError, QueueFullError, QueueUnavailableError
from batch_subscriber.jobs import Cause, DeadLetter, Job
from batch_subscriber.queues import redis_scripts as scripts
from batch_subscriber.queues.interface import Backlog, DeadLetters, Delivery, JobQueue
from batch_subscriber.redis_link import RedisLink, RedisUrl, redis_url
from batch_subscriber.wire import decode_job, decode_letter, encode_job, encode_letter

MAX_JOBS: Final = 1_000_000
GROUP: Final = "subscribers"
#: How often jobs whose time-out has ended are looked for while there are none, seconds.
LOOK_EVERY_S: Final = 1.0
#: How long it is remembered that a group is cancelled, seconds.
CANCELLED_FOR_S: Final = 30 * 86_400

_PARTS: Final = ("jobs", "delayed", "known", "dead", "dead-keys")

_log = logging.getLogger("headroom.batch")


class RedisQueue(JobQueue, DeadLetters, Cancellations):
    """A queue, its dead letters and the cancelled groups under one name of a server."""

    def __init__(self, url: RedisUrl, name: str = "batch", *, max_jobs: int = MAX_JOBS) -> None:
        """Use the keys `headroom:{name}:...`; `max_jobs` bounds jobs and dead letters together."""
        self._link = RedisLink(url, QueueUnavailableError)
        # The braces keep the keys on one node of a cluster.
        self._keys = [f"headroom:{{{name}}}:{part}" for part in _PARTS]
        self._cancelled = f"headroom:{{{name}}}:cancelled"
        self._max_jobs = max_jobs
        self._warned = False

    @override
    async def put(self, jobs: Sequence[Job]) -> None:
        words: list[str | bytes | float] = []
        for job in jobs:
            words += (_key(job), job.submitted_at, encode_job(job))
        accepted, have = await self._link.run(scripts.PUT, self._keys, self._max_jobs, *words)
        if not accepted:
            msg = (
                f"the queue holds {have} jobs and dead letters of at most {self._max_jobs}, and {len(jobs)} "
                "more were put. Put less, or later; `headroom-batch dead drop` makes room"
            )
            raise QueueFullError(msg)

    @override
    async def receive(self, limit: int, visibility_s: float, wait_s: float) -> list[Delivery]:
        await self._warn_once()
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            last, next_ms, entries = await self._link.run(
                scripts.RECEIVE, self._keys, GROUP, limit, _ms(visibility_s), scripts.HORIZON_MS
            )
            if taken := [one for entry in entries if (one := await self._delivery(*entry)) is not None]:
                return taken
            left = until - loop.time()
            if left <= 0:
                return []
            if not entries:
                wait = min(left, LOOK_EVERY_S, next_ms / 1000 if next_ms >= 0 else left)
                await self._link.command(
                    "XREAD", "COUNT", 1, "BLOCK", max(1, int(wait * 1000)), "STREAMS", self._keys[0], last
                )

    async def _delivery(self, entry: bytes, count: int, fields: Sequence[bytes]) -> Delivery | None:
        """Return an entry as a delivery; one that is no job goes to the dead letters."""
        name = entry.decode()
        values = dict(zip(fields[::2], fields[1::2], strict=True))
        raw = values.get(b"job", b"")
        deliveries = count + _number(values, b"n")
        try:
            job = decode_job(raw, generation=name, submitted_at=_entry_time(name))
        except JobError as fault:
            key = hashlib.sha256(raw).hexdigest()[:16]
            letter = DeadLetter(
                key=key, cause=Cause.MALFORMED, detail=str(fault), at=time.time(), job=None, raw=raw,
                deliveries=deliveries,
            )  # fmt: skip
            await self._link.run(
                scripts.BURY, self._keys, GROUP, name, count, "", letter.key, encode_letter(letter)
            )
            return None
        return Delivery(job, f"{name}/{count}", deliveries)

    @override
    async def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> set[str]:
        words = [word for delivery in deliveries for word in delivery.handle.split("/")]
        lost = await self._link.run(
            scripts.EXTEND, self._keys, GROUP, _ms(visibility_s), scripts.HORIZON_MS, *words
        )
        return {deliveries[place].handle for place in lost}

    @override
    async def ack(self, delivery: Delivery) -> bool:
        held = await self._link.run(
            scripts.ACK, self._keys, GROUP, *delivery.handle.split("/"), _key(delivery.job)
        )
        return bool(held)

    @override
    async def nack(self, delivery: Delivery, job: Job, delay_s: float) -> None:
        await self._link.run(
            scripts.NACK, self._keys, GROUP, *delivery.handle.split("/"), _ms(delay_s), delivery.deliveries,
            encode_job(job),
        )  # fmt: skip

    @override
    async def dead_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        await self._link.run(
            scripts.BURY, self._keys, GROUP, *delivery.handle.split("/"), _key(delivery.job), letter.key,
            encode_letter(letter),
        )  # fmt: skip

    @override
    async def backlog(self) -> Backlog:
        entries, held, delayed, oldest, first = await self._link.run(scripts.BACKLOG, self._keys, GROUP)
        times = [float(oldest)] if oldest else []
        if first:
            times.append(_entry_time(first.decode()))
        return Backlog(entries - held + delayed, held, min(times, default=None))

    @override
    async def letters(self, limit: int, after: str = "") -> list[DeadLetter]:
        found = await self._link.run(scripts.LETTERS, self._keys, after, limit)
        return [decode_letter(data) for data in found if data is not None]

    @override
    async def letter(self, key: str) -> DeadLetter | None:
        data = await self._link.command("HGET", self._keys[3], key)
        return None if data is None else decode_letter(data)

    @override
    async def drop(self, key: str) -> bool:
        return bool(await self._link.run(scripts.DROP, self._keys, key))

    @override
    async def cancel(self, group: str) -> None:
        now = int(time.time())
        await self._link.command("ZADD", self._cancelled, now, group)
        await self._link.command("ZREMRANGEBYSCORE", self._cancelled, "-inf", now - CANCELLED_FOR_S)

    @override
    async def cancelled(self, groups: Collection[str]) -> set[str]:
        names = list(groups)
        if not names:
            return set()
        scores = await self._link.command("ZMSCORE", self._cancelled, *names)
        return {name for name, score in zip(names, scores, strict=True) if score is not None}

    @override
    async def close(self) -> None:
        await self._link.close()

    async def _warn_once(self) -> None:
        if not self._warned and not await self._link.is_durable():
            _log.warning(
                "the Redis server does not log writes to disk: its end loses jobs. Set appendonly yes and "
                "appendfsync always"
            )
        self._warned = True


def _key(job: Job) -> str:
    return hashlib.sha256(f"{job.id}\0{job.generation}".encode()).hexdigest()[:40]


def _ms(seconds: float) -> int:
    return min(max(0, round(seconds * 1000)), scripts.HORIZON_MS)


def _entry_time(name: str) -> float:
    return int(name.partition("-")[0]) / 1000


def _number(values: Mapping[bytes, bytes], field: bytes) -> int:
    value = values.get(field, b"0")
    return int(value) if value.isdigit() and len(value) < 10 else 0


async def open_queue(url: str) -> RedisQueue:
    """Return the queue of `redis://HOST:PORT/DB[?queue=NAME&max_jobs=N&password_file=PATH]`.

    Raises ConfigurationError.
    """
    place = redis_url(url, ("queue",), ("max_jobs",))
    return RedisQueue(place, place.names.get("queue", "batch"), **place.limits)
