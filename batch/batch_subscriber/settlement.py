"""Ends jobs: the result first, then the dead letter where there is one, then the job leaves the queue."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from batch_subscriber.answers import Answer
from batch_subscriber.endings import letter_of, refused_result, result_of
from batch_subscriber.errors import QueueUnavailableError, ResultError, StoreUnavailableError
from batch_subscriber.hand import Held
from batch_subscriber.jobs import Cause, Job, Result
from batch_subscriber.metrics import Metrics
from batch_subscriber.queues.interface import JobQueue
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.retries import Decision

#: Waits between calls that a queue or a store did not answer, seconds; the last one repeats.
AGAIN_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
#: Calls to a queue for the end of one job; after them the job comes again and its result is found.
_QUEUE_CALLS: Final = 8

_log = logging.getLogger(__name__)


class Settlement:
    """The queue and the result store, and how calls to them are repeated."""

    def __init__(
        self, queue: JobQueue, results: ResultStore, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        """Join the parts; `clock` is Unix time."""
        self._queue = queue
        self._results = results
        self._metrics = metrics
        self._clock = clock
        self.is_queue_up = False
        """The last call to the queue was answered."""

    async def end(self, held: Held, decision: Decision, answer: Answer | None) -> None:
        """End a job for good. It stays in hand, and comes again should the queue not answer."""
        now = self._clock()
        result = result_of(held.job, decision, answer, now)
        if await self._write(result):
            self._metrics.count("results", result.cause.value or "none")
            if result.submitted_at:
                self._metrics.observe("job_seconds", now - result.submitted_at)
        else:
            self._metrics.count("results_known")
        await self._leave(held, result.cause, result.detail, now)

    async def is_known(self, held: Held) -> bool:
        """Return whether a job that came again has a result; it leaves the queue then."""
        known = await self._known(held)
        if known is None:
            return False
        self._metrics.count("results_known")
        await self._leave(held, known.cause, known.detail, self._clock())
        return True

    async def retry(self, held: Held, failed: Job, delay_s: float) -> None:
        """Have the job come again, its failure noted."""
        await self._ask_queue(lambda: self._queue.nack(held.delivery, failed, delay_s))

    async def give_back(self, held: Held) -> None:
        """Have the job come again at once; where the queue does not answer, by its time-out."""
        try:
            await self._queue.nack(held.delivery, held.job, 0.0)
        except QueueUnavailableError as fault:
            self.queue_failed(fault)

    def queue_failed(self, fault: Exception) -> None:
        """Note a call that the queue did not answer."""
        self.is_queue_up = False
        self._metrics.count("queue_errors")
        _log.warning("the queue did not answer: %s", fault)

    async def _known(self, held: Held) -> Result | None:
        for wait_s in AGAIN_S:
            try:
                return await self._results.read(*held.key)
            except StoreUnavailableError as fault:
                self._store_failed(fault)
                await asyncio.sleep(wait_s)
        # Sending it again costs an inference, and its result is still written once.
        return None

    async def _leave(self, held: Held, cause: Cause, detail: str, now: float) -> None:
        letter = letter_of(held.job, cause, detail, held.delivery.deliveries, now)
        if letter is None:
            await self._ask_queue(lambda: self._queue.ack(held.delivery))
        elif await self._ask_queue(lambda: self._queue.dead_letter(held.delivery, letter)):
            self._metrics.count("dead_letters", cause.value)

    async def _write(self, result: Result) -> bool:
        """Write until the store takes it."""
        failures = 0
        while True:
            try:
                return await self._results.write(result)
            except StoreUnavailableError as fault:
                self._store_failed(fault)
                await asyncio.sleep(AGAIN_S[min(failures, len(AGAIN_S) - 1)])
                failures += 1
            except ResultError as refused:
                result = refused_result(result, str(refused))

    async def _ask_queue(self, call: Callable[[], Awaitable[Any]]) -> bool:
        """Make a call until the queue answers; False when it does not for a while."""
        for at in range(_QUEUE_CALLS):
            try:
                await call()
            except QueueUnavailableError as fault:
                self.queue_failed(fault)
                await asyncio.sleep(AGAIN_S[min(at, len(AGAIN_S) - 1)])
            else:
                self.is_queue_up = True
                return True
        return False

    def _store_failed(self, fault: Exception) -> None:
        self._metrics.count("store_errors")
        _log.warning("the result store did not answer: %s", fault)
