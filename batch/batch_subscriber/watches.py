"""What a subscriber looks at all the time: time-outs of its jobs, cancelled groups, the queue's backlog."""

import asyncio
from collections.abc import Callable
from typing import Final

from batch_subscriber.cancellations import Cancellations
from batch_subscriber.errors import BatchError, QueueUnavailableError
from batch_subscriber.hand import Hand, Held
from batch_subscriber.metrics import Metrics
from batch_subscriber.queues.interface import Backlog, JobQueue
from batch_subscriber.settings import Settings
from batch_subscriber.settlement import Settlement

_BACKLOG_EVERY_S: Final = 5.0


class Watches:
    """Loops that run until they are cancelled."""

    def __init__(
        self, settings: Settings, hand: Hand, queue: JobQueue, settlement: Settlement, metrics: Metrics
    ) -> None:
        """Watch the jobs in `hand`."""
        self._settings = settings
        self._hand = hand
        self._queue = queue
        self._settlement = settlement
        self._metrics = metrics
        self.backlog = Backlog(None, None, None)
        """What the queue held a moment ago."""

    async def extend(self, lost: Callable[[], None]) -> None:
        """Extend the jobs in hand; call `lost` when some of them are not held any more."""
        settings = self._settings
        while True:
            await asyncio.sleep(min(1.0, settings.visibility_s / 10))
            now = asyncio.get_running_loop().time()
            found = self._hand.to_extend(now, settings.visibility_s, settings.max_hold_s)
            if not found:
                continue
            try:
                gone = await self._queue.extend([held.delivery for held in found], settings.visibility_s)
            except QueueUnavailableError as fault:
                self._settlement.queue_failed(fault)
                for held in found:
                    held.extended_at = float("-inf")
                continue
            if gone:
                self._metrics.count("deliveries_lost", by=len(self._hand.lost(gone)))
                lost()

    async def look_for_cancelled(self, cancellations: Cancellations, cancel: Callable[[Held], None]) -> None:
        """Call `cancel` once for each job in hand whose group is cancelled."""
        while True:
            await asyncio.sleep(self._settings.cancel_every_s)
            cancelled = await self.cancelled_among(cancellations, self._hand.groups())
            for held in self._hand:
                if held.job.group in cancelled and not held.is_cancelled:
                    held.is_cancelled = True
                    cancel(held)

    async def cancelled_among(self, cancellations: Cancellations, groups: set[str]) -> set[str]:
        """Return those of `groups` that are cancelled; none where that cannot be asked."""
        if not groups:
            return set()
        try:
            return await cancellations.cancelled(groups)
        except BatchError as fault:
            self._settlement.queue_failed(fault)
            return set()

    async def read_backlog(self) -> None:
        """Keep `backlog` current."""
        while True:
            try:
                self.backlog = await self._queue.backlog()
                self._settlement.is_queue_up = True
            except QueueUnavailableError as fault:
                self._settlement.queue_failed(fault)
            await asyncio.sleep(_BACKLOG_EVERY_S)
