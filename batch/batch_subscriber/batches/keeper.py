"""Brings every open batch to its end: checks its file, puts its jobs, watches for results, writes its files.

Each step can be done again after a kill: jobs have names that follow from batch and line, a queue takes a job
again, and what a step has reached is kept before the next one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from batch_subscriber.batches.lines import MAX_LINES, Asked, check_file, is_success, job_of, read_line
from batch_subscriber.batches.output import write_files
from batch_subscriber.batches.pending import Pending
from batch_subscriber.batches.records import Batch, Status
from batch_subscriber.batches.storage import Storage
from batch_subscriber.cancellations import Cancellations
from batch_subscriber.errors import BatchError, QueueFullError
from batch_subscriber.jobs import Job
from batch_subscriber.queues.interface import JobQueue
from batch_subscriber.results.interface import ResultStore

#: Jobs that are put together, and bytes of their bodies.
PUT_JOBS: Final = 200
PUT_BYTES: Final = 4 * 2**20
#: Results that are asked for at once, and lines of one look.
READ_AT_ONCE: Final = 16
LOOK_LINES: Final = 256
#: Waits between looks: while nothing comes, and after a queue or store did not answer, seconds.
IDLE_S: Final = 0.5
AGAIN_S: Final = 2.0
#: How often what has expired is removed, seconds.
_FORGET_EVERY_S: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """How batches are run."""

    keep_s: float = 30 * 86_400.0
    """How long ended batches and their files are kept, seconds."""
    cancel_grace_s: float = 10.0
    """How long a cancelled batch waits for the results of jobs that were running, seconds."""
    objective: str = ""
    """InferenceObjective of the jobs; "" leaves it to the subscriber."""
    max_lines: int = MAX_LINES


class Keeper:
    """One task for each open batch."""

    def __init__(
        self,
        storage: Storage,
        queue: JobQueue,
        results: ResultStore,
        cancellations: Cancellations,
        settings: KeeperSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._queue = queue
        self._results = results
        self._cancellations = cancellations
        self._settings = settings
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._forgetting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Go on with the batches that are open."""
        for batch_id in await self._storage.open_batches():
            self.look(batch_id)
        self._forgetting = asyncio.get_running_loop().create_task(self._forget())

    def look(self, batch_id: str) -> None:
        """Begin with a new batch, or look at once at a changed one."""
        self._wake.setdefault(batch_id, asyncio.Event()).set()
        if batch_id not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._keep(batch_id))
            self._tasks[batch_id] = task
            task.add_done_callback(lambda _: self._drop(batch_id))

    def _drop(self, batch_id: str) -> None:
        self._tasks.pop(batch_id, None)
        self._wake.pop(batch_id, None)

    async def close(self) -> None:
        """Stop; the next process goes on."""
        tasks = [*self._tasks.values(), *([self._forgetting] if self._forgetting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forget(self) -> None:
        while True:
            with contextlib.suppress(BatchError):
                await self._storage.forget(self._clock(), self._settings.keep_s)
            await asyncio.sleep(_FORGET_EVERY_S)

    async def _keep(self, batch_id: str) -> None:
        """Run a batch to its end, whatever fails in between."""
        pending: Pending | None = None
        while True:
            try:
                batch = await self._storage.batch(batch_id)
                if batch.status.is_end:
                    return
                if batch.status is Status.VALIDATING:
                    await self._check(batch)
                elif batch.status is Status.FINALIZING:
                    await write_files(
                        batch, self._storage, self._results, now=self._clock(), keep_s=self._settings.keep_s
                    )
                else:
                    pending = pending or await self._pending(batch)
                    await self._advance(batch, pending)
            except BatchError as fault:
                _log.warning("batch %s waits: %s", batch_id, fault)
                await self._pause(batch_id, AGAIN_S)
            except asyncio.CancelledError:
                raise
            except Exception:
                _log.exception("batch %s", batch_id)
                await self._pause(batch_id, AGAIN_S)

    async def _pause(self, batch_id: str, seconds: float) -> None:
        event = self._wake[batch_id]
        event.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    # Checking.

    async def _check(self, batch: Batch) -> None:
        path = self._storage.path(batch.input_file_id)

        def act() -> tuple[int, list[dict[str, object]]]:
            with path.open("rb") as lines:
                count, faults = check_file(lines, batch.endpoint, self._settings.max_lines)
            return count, [fault.shown() for fault in faults]

        try:
            total, errors = await asyncio.get_running_loop().run_in_executor(None, act)
        except OSError as fault:
            total, errors = 0, [_unreadable(fault)]

        def change(current: Batch) -> Batch:
            if current.status is not Status.VALIDATING:
                return current
            if errors:
                return current.at(Status.FAILED, self._clock(), errors=tuple(errors))
            return current.at(Status.IN_PROGRESS, self._clock(), total=total)

        await self._storage.change(batch.id, change)

    # Putting and watching.

    async def _pending(self, batch: Batch) -> Pending:
        return Pending(batch.total, await self._storage.done(batch.id))

    async def _advance(self, batch: Batch, pending: Pending) -> None:
        """Do one round of a batch whose jobs run."""
        now = self._clock()
        if batch.status is Status.CANCELLING:
            await self._cancellations.cancel(batch.group)
        elif now >= batch.expires_at:
            await self._cancellations.cancel(batch.group)
            await self._finalize(batch, pending, Status.EXPIRED)
            return
        is_full = False
        if batch.status is Status.IN_PROGRESS and batch.put < batch.total:
            try:
                batch = await self._put_some(batch)
            except QueueFullError as full:
                _log.info("batch %s: %s", batch.id, full)
                is_full = True
        found = await self._look(batch, pending)
        if found:
            completed, failed = pending.counts()
            await self._storage.change(
                batch.id, lambda current: replace(current, completed=completed, failed=failed)
            )
        if batch.status is Status.CANCELLING:
            since = now - batch.times[Status.CANCELLING.value]
            if pending.count_below(batch.put) == 0 or since >= self._settings.cancel_grace_s:
                await self._finalize(batch, pending, Status.CANCELLED)
                return
        elif pending.count_below(batch.total) == 0:
            await self._finalize(batch, pending, Status.COMPLETED)
            return
        if not found and (is_full or batch.put == batch.total or batch.status is Status.CANCELLING):
            await self._pause(batch.id, min(IDLE_S, max(0.01, batch.expires_at - now)))

    async def _put_some(self, batch: Batch) -> Batch:
        jobs, offset = await asyncio.get_running_loop().run_in_executor(None, self._next_jobs, batch)
        await self._queue.put(jobs)
        put = batch.put + len(jobs)
        return await self._storage.change(batch.id, lambda current: replace(current, put=put, offset=offset))

    def _next_jobs(self, batch: Batch) -> tuple[list[Job], int]:
        jobs: list[Job] = []
        size = 0
        with self._storage.path(batch.input_file_id).open("rb") as file:
            file.seek(batch.offset)
            while len(jobs) < PUT_JOBS and size < PUT_BYTES and (line := file.readline()):
                if line.strip():
                    jobs.append(self._job(batch, batch.put + len(jobs), read_line(line)))
                    size += len(line)
            return jobs, file.tell()

    def _job(self, batch: Batch, line: int, asked: Asked) -> Job:
        return job_of(
            asked,
            job_id=batch.job_id(line),
            generation=batch.generation,
            group=batch.group,
            deadline=batch.expires_at,
            now=batch.times["created"],
            objective=self._settings.objective,
        )

    async def _look(self, batch: Batch, pending: Pending) -> bool:
        """Ask for the results of some lines; return whether there was any."""
        lines = pending.some(LOOK_LINES, batch.put)
        gate = asyncio.Semaphore(READ_AT_ONCE)

        async def result(line: int) -> tuple[int, bool] | None:
            name, generation = batch.job_id(line), batch.generation
            async with gate:
                if not await self._results.exists(name, generation):
                    return None
                found = await self._results.read(name, generation)
            return None if found is None else (line, not is_success(found))

        found = [one for one in await asyncio.gather(*map(result, lines)) if one is not None]
        if found:
            await self._storage.note_done(batch.id, found)
            pending.note(found)
        return bool(found)

    async def _finalize(self, batch: Batch, pending: Pending, outcome: Status) -> None:
        """Begin to write the files of a batch; what has no result by now counts as failed."""
        completed, _ = pending.counts()
        now = self._clock()

        def change(current: Batch) -> Batch:
            return current.at(
                Status.FINALIZING,
                now,
                outcome=outcome,
                completed=completed,
                failed=current.total - completed,
                output_file_id=f"file-{batch.id.removeprefix('batch_')}-output",
                error_file_id=f"file-{batch.id.removeprefix('batch_')}-error",
            )

        await self._storage.change(batch.id, change)


def _unreadable(fault: OSError) -> dict[str, object]:
    return {
        "code": "unreadable_file",
        "message": f"The input file cannot be read: {fault.strerror}",
        "line": None,
        "param": "input_file_id",
    }
