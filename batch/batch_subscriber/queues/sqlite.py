"""The embedded queue: one SQLite file, shared by the processes of one machine. It needs no server.

A job is `ready` (due 0), delayed, or held: then `due` is the time at which it becomes ready again. A delivery
is named by the row and its number of deliveries, so that a late one cannot touch a later one's job.
"""

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from batch_subscriber.cancellations import Cancellations
from batch_subscriber.errors import JobError, QueueFullError, QueueUnavailableError
from batch_subscriber.jobs import Cause, DeadLetter, Job
from batch_subscriber.queues.interface import Backlog, DeadLetters, Delivery, JobQueue
from batch_subscriber.sqlite_thread import SqliteFile
from batch_subscriber.urls import file_url
from batch_subscriber.wire import decode_job, encode_job

VERSION: Final = 1
MAX_JOBS: Final = 1_000_000
MAX_BYTES: Final = 16 * 2**30
#: How often another process's jobs are looked for while there are none, seconds.
LOOK_EVERY_S: Final = 0.1

_SCHEMA: Final = """
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL, generation TEXT NOT NULL, data BLOB NOT NULL, submitted_at REAL NOT NULL,
    due REAL NOT NULL DEFAULT 0, held INTEGER NOT NULL DEFAULT 0, deliveries INTEGER NOT NULL DEFAULT 0,
    UNIQUE (id, generation)
);;
CREATE INDEX jobs_due ON jobs (due, seq);;
CREATE INDEX jobs_age ON jobs (submitted_at);;
CREATE TABLE dead (
    key TEXT PRIMARY KEY, cause TEXT NOT NULL, detail TEXT NOT NULL, at REAL NOT NULL,
    is_job INTEGER NOT NULL, data BLOB NOT NULL, deliveries INTEGER NOT NULL
) WITHOUT ROWID;;
CREATE TABLE cancelled (grp TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;;
CREATE TABLE totals (jobs INTEGER NOT NULL, dead INTEGER NOT NULL, bytes INTEGER NOT NULL,
    held INTEGER NOT NULL);;
INSERT INTO totals VALUES (0, 0, 0, 0);;
CREATE TRIGGER jobs_in AFTER INSERT ON jobs BEGIN
    UPDATE totals SET jobs = jobs + 1, bytes = bytes + length(NEW.data); END;;
CREATE TRIGGER jobs_out AFTER DELETE ON jobs BEGIN
    UPDATE totals SET jobs = jobs - 1, bytes = bytes - length(OLD.data), held = held - OLD.held; END;;
CREATE TRIGGER jobs_held AFTER UPDATE OF held ON jobs WHEN NEW.held <> OLD.held BEGIN
    UPDATE totals SET held = held + NEW.held - OLD.held; END;;
CREATE TRIGGER jobs_size AFTER UPDATE OF data ON jobs BEGIN
    UPDATE totals SET bytes = bytes + length(NEW.data) - length(OLD.data); END;;
CREATE TRIGGER dead_in AFTER INSERT ON dead BEGIN
    UPDATE totals SET dead = dead + 1, bytes = bytes + length(NEW.data); END;;
CREATE TRIGGER dead_out AFTER DELETE ON dead BEGIN
    UPDATE totals SET dead = dead - 1, bytes = bytes - length(OLD.data); END
"""


class SqliteQueue(JobQueue, DeadLetters, Cancellations):
    """A queue, its dead letters and the cancelled groups in one file."""

    def __init__(
        self,
        path: Path,
        *,
        max_jobs: int = MAX_JOBS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use the file at `path`.

        `put` accepts nothing that would make more than `max_jobs` jobs and dead letters, or more than
        `max_bytes` of their JSON. `clock` is the Unix time that all processes of the file share.
        """
        self._file = SqliteFile(path, _SCHEMA, VERSION, QueueUnavailableError)
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._clock = clock
        self._arrived = asyncio.Event()

    @override
    async def put(self, jobs: Sequence[Job]) -> None:
        rows = [(job.id, job.generation, encode_job(job), job.submitted_at) for job in jobs]

        def act(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT OR IGNORE INTO jobs (id, generation, data, submitted_at) VALUES (?, ?, ?, ?)", rows
            )
            count, dead, size = db.execute("SELECT jobs, dead, bytes FROM totals").fetchone()
            if count + dead > self._max_jobs or size > self._max_bytes:
                msg = (
                    f"the queue would hold {count} jobs and {dead} dead letters of {size} bytes; its bounds "
                    f"are {self._max_jobs} and {self._max_bytes} bytes. Put less, or later; "
                    "`headroom-batch dead drop` makes room"
                )
                raise QueueFullError(msg)

        await self._file.write(act)
        self._arrived.set()

    @override
    async def receive(self, limit: int, visibility_s: float, wait_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            self._arrived.clear()
            if await self._file.read(self._any_ready):
                got = await self._file.write(lambda db: self._take(db, limit, visibility_s))
                if got:
                    return got
            left = until - loop.time()
            if left <= 0:
                return []
            try:
                async with asyncio.timeout(min(left, LOOK_EVERY_S)):
                    await self._arrived.wait()
            except TimeoutError:
                pass

    def _any_ready(self, db: sqlite3.Connection) -> bool:
        found = db.execute("SELECT 1 FROM jobs WHERE due <= ? LIMIT 1", (self._clock(),)).fetchone()
        return found is not None

    def _take(self, db: sqlite3.Connection, limit: int, visibility_s: float) -> list[Delivery]:
        now = self._clock()
        db.execute("UPDATE jobs SET due = 0, held = 0 WHERE due > 0 AND due <= ?", (now,))
        taken: list[Delivery] = []
        rows = db.execute(
            "SELECT seq, data, deliveries FROM jobs WHERE due = 0 ORDER BY seq LIMIT ?", (limit,)
        ).fetchall()
        for seq, data, deliveries in rows:
            try:
                job = decode_job(data)
            except JobError as fault:
                self._bury_raw(db, seq, data, str(fault), now)
                continue
            taken.append(Delivery(job, f"{seq}/{deliveries + 1}", deliveries + 1))
        db.executemany(
            "UPDATE jobs SET due = ?, held = 1, deliveries = deliveries + 1 WHERE seq = ?",
            [(now + visibility_s, _row(delivery)[0]) for delivery in taken],
        )
        return taken

    def _bury_raw(self, db: sqlite3.Connection, seq: int, data: bytes, fault: str, now: float) -> None:
        key = hashlib.sha256(data).hexdigest()[:16]
        db.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
        db.execute(
            "INSERT OR IGNORE INTO dead VALUES (?, ?, ?, ?, 0, ?, 1)",
            (key, Cause.MALFORMED.value, fault, now, data),
        )

    @override
    async def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> set[str]:
        def act(db: sqlite3.Connection) -> set[str]:
            due = self._clock() + visibility_s
            return {
                delivery.handle
                for delivery in deliveries
                if not db.execute(_EXTEND, (due, *_row(delivery))).rowcount
            }

        return await self._file.write(act)

    @override
    async def ack(self, delivery: Delivery) -> bool:
        return await self._file.write(lambda db: db.execute(_REMOVE, _row(delivery)).rowcount > 0)

    @override
    async def nack(self, delivery: Delivery, job: Job, delay_s: float) -> None:
        data = encode_job(job)

        def act(db: sqlite3.Connection) -> None:
            due = self._clock() + delay_s if delay_s > 0 else 0.0
            db.execute(_GIVE_BACK, (due, data, *_row(delivery)))

        await self._file.write(act)
        self._arrived.set()

    @override
    async def dead_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        data = letter.raw if letter.job is None else encode_job(letter.job)
        row = (
            letter.key, letter.cause.value, letter.detail, letter.at, letter.job is not None, data,
            letter.deliveries,
        )  # fmt: skip

        def act(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO dead VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            db.execute(_REMOVE, _row(delivery))

        await self._file.write(act)

    @override
    async def backlog(self) -> Backlog:
        def act(db: sqlite3.Connection) -> Backlog:
            jobs, held = db.execute("SELECT jobs, held FROM totals").fetchone()
            (oldest,) = db.execute("SELECT min(submitted_at) FROM jobs").fetchone()
            return Backlog(waiting=jobs - held, held=held, oldest_submitted_at=oldest)

        return await self._file.read(act)

    @override
    async def letters(self, limit: int, after: str = "") -> list[DeadLetter]:
        def act(db: sqlite3.Connection) -> list[DeadLetter]:
            rows = db.execute("SELECT * FROM dead WHERE key > ? ORDER BY key LIMIT ?", (after, limit))
            return [_letter(row) for row in rows]

        return await self._file.read(act)

    @override
    async def letter(self, key: str) -> DeadLetter | None:
        def act(db: sqlite3.Connection) -> DeadLetter | None:
            row = db.execute("SELECT * FROM dead WHERE key = ?", (key,)).fetchone()
            return None if row is None else _letter(row)

        return await self._file.read(act)

    @override
    async def drop(self, key: str) -> bool:
        return await self._file.write(
            lambda db: db.execute("DELETE FROM dead WHERE key = ?", (key,)).rowcount > 0
        )

    @override
    async def cancel(self, group: str) -> None:
        await self._file.write(
            lambda db: db.execute("INSERT OR IGNORE INTO cancelled VALUES (?, ?)", (group, self._clock()))
        )

    @override
    async def cancelled(self, groups: Collection[str]) -> set[str]:
        def act(db: sqlite3.Connection) -> set[str]:
            return {
                group
                for group in groups
                if db.execute("SELECT 1 FROM cancelled WHERE grp = ?", (group,)).fetchone()
            }

        return await self._file.read(act) if groups else set()

    @override
    async def close(self) -> None:
        await self._file.close()


# Of the row that a delivery still holds; `_row` gives the last two values.
_EXTEND: Final = "UPDATE jobs SET due = ? WHERE seq = ? AND deliveries = ? AND held = 1"
_GIVE_BACK: Final = (
    "UPDATE jobs SET due = ?, held = 0, data = ? WHERE seq = ? AND deliveries = ? AND held = 1"
)
_REMOVE: Final = "DELETE FROM jobs WHERE seq = ? AND deliveries = ? AND held = 1"


def _row(delivery: Delivery) -> tuple[int, int]:
    seq, _, deliveries = delivery.handle.partition("/")
    return int(seq), int(deliveries)


def _letter(row: Sequence[Any]) -> DeadLetter:
    key, cause, detail, at, is_job, data, deliveries = row
    return DeadLetter(
        key=key,
        cause=Cause(cause),
        detail=detail,
        at=at,
        job=decode_job(data) if is_job else None,
        raw=b"" if is_job else data,
        deliveries=deliveries,
    )


async def open_queue(url: str) -> SqliteQueue:
    """Return the queue of `sqlite:/PATH[?max_jobs=N&max_bytes=N]`. Raises ConfigurationError."""
    path, limits = file_url(url, ("max_jobs", "max_bytes"))
    return SqliteQueue(
        Path(path),
        max_jobs=limits.get("max_jobs", MAX_JOBS),
        max_bytes=limits.get("max_bytes", MAX_BYTES),
    )
