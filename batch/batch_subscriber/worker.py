"""The subscriber: takes jobs from a queue, sends them as the flow allows, writes results, acknowledges.

The order of the steps makes a job end exactly once. Its result is durable before the job leaves the queue, so
that no kill loses it; the store keeps one result for each job id and generation, so that a job that comes
again is not answered twice. A job that came again and has a result is not sent again.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from batch_subscriber.answers import Answer, GatewayFault, Sender
from batch_subscriber.cancellations import Cancellations
from batch_subscriber.endings import CANCELLED, CUT_OFF, DRAINED, outcome_of
from batch_subscriber.errors import QueueUnavailableError
from batch_subscriber.flow import Flow, Outcome, Reading, Ticket
from batch_subscriber.gauges import show_gauges
from batch_subscriber.hand import Hand, Held
from batch_subscriber.jobs import MAX_BODY_BYTES
from batch_subscriber.metrics import Metrics
from batch_subscriber.queues.interface import Delivery, JobQueue
from batch_subscriber.results.interface import ResultStore
from batch_subscriber.retries import (
    Decision,
    Next,
    after_answer,
    after_failure,
    before_sending,
    expires_at,
    retry_after,
)
from batch_subscriber.settings import Settings
from batch_subscriber.settlement import AGAIN_S, Settlement
from batch_subscriber.watches import Watches

#: Jobs of one call to the queue.
_RECEIVE_MOST: Final = 64
#: How long one call waits for a job.
_RECEIVE_S: Final = 2.0

_log = logging.getLogger(__name__)


class Worker:
    """One subscriber. Make it, `run` it; `drain` ends it."""

    def __init__(
        self,
        settings: Settings,
        queue: JobQueue,
        results: ResultStore,
        gateway: Sender,
        metrics: Metrics,
        *,
        cancellations: Cancellations | None = None,
        read_picker: Callable[[], Awaitable[Reading | None]] | None = None,
        clock: Callable[[], float] = time.time,
        randomness: Callable[[], float] = random.random,
    ) -> None:
        """Join the parts. `clock` is Unix time; `read_picker` returns a reading, None when no page comes."""
        self._settings = settings
        self._limits = settings.limits()
        self._queue = queue
        self._gateway = gateway
        self._metrics = metrics
        self._cancellations = cancellations
        self._read_picker = read_picker
        self._clock = clock
        self._random = randomness
        self._flow = Flow(settings.flow())
        self._hand = Hand()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[tuple[str, str], asyncio.Task[Answer]] = {}
        self._mean_body = float(MAX_BODY_BYTES)
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._draining = asyncio.Event()
        self._served_at: float | None = None
        self._settlement = Settlement(queue, results, metrics, clock)
        self._watches = Watches(settings, self._hand, queue, self._settlement, metrics)
        metrics.show("is_draining", lambda: float(self.is_draining))
        show_gauges(
            metrics, self._flow, self._hand, lambda: self._watches.backlog, now=self._now, clock=clock
        )

    # Life.

    async def run(self) -> None:
        """Work until `drain` is called and its time is over, or an own fault ends it, which is raised."""
        watches = self._watches
        loops = [self._fetch(), watches.extend(self._pump), watches.read_backlog()]
        if self._cancellations is not None:
            loops.append(watches.look_for_cancelled(self._cancellations, self._cancel))
        if self._read_picker is not None:
            loops.append(self._watch_picker(self._read_picker))
        async with asyncio.TaskGroup() as group:
            fetching, *watching = [group.create_task(loop) for loop in loops]
            await self._draining.wait()
            # What it has taken is given back; cut off, it would stay hidden until its time-out.
            await asyncio.wait({fetching}, timeout=_RECEIVE_S + 1.0)
            await self._finish_in_flight()
            for task in (fetching, *watching):
                task.cancel()

    def drain(self) -> None:
        """Take no further job, give back what is not sent, and let the rest end within `drain_s`."""
        self._draining.set()
        self._room.set()

    @property
    def is_queue_up(self) -> bool:
        """Return whether the last call to the queue was answered."""
        return self._settlement.is_queue_up

    @property
    def is_draining(self) -> bool:
        """Return whether `drain` was called."""
        return self._draining.is_set()

    async def _finish_in_flight(self) -> None:
        for held in self._hand:
            if not held.is_under_way:
                held.is_under_way = True
                self._start(self._give_back(held))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.drain_s)
        for held in self._hand:
            self._abort(held, "drain")
        if self._tasks:
            # Their jobs are given back; what a queue or store does not take comes again by its time-out.
            await asyncio.wait(self._tasks, timeout=5.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _give_back(self, held: Held) -> None:
        await self._settlement.give_back(held)
        self._let_go(held)

    # Jobs in.

    async def _fetch(self) -> None:
        failures = 0
        while not self.is_draining:
            self._room.clear()
            places = self._places()
            if places == 0:
                await self._room.wait()
                continue
            try:
                got = await self._queue.receive(places, self._settings.visibility_s, _RECEIVE_S)
            except QueueUnavailableError as fault:
                self._settlement.queue_failed(fault)
                await asyncio.sleep(AGAIN_S[min(failures, len(AGAIN_S) - 1)])
                failures += 1
                continue
            failures = 0
            self._settlement.is_queue_up = True
            if got:
                self._metrics.count("jobs_received", by=len(got))
                mean = sum(len(delivery.job.body) for delivery in got) / len(got)
                self._mean_body = (self._mean_body + mean) / 2
            cancelled = await self._cancelled_among(got)
            for delivery in got:
                self._hand.take(delivery, self._now(), is_cancelled=delivery.job.group in cancelled)
            self._pump()

    async def _cancelled_among(self, got: Sequence[Delivery]) -> set[str]:
        """Return the cancelled groups of jobs that came."""
        if self._cancellations is None:
            return set()
        groups = {delivery.job.group for delivery in got if delivery.job.group}
        return await self._watches.cancelled_among(self._cancellations, groups)

    def _places(self) -> int:
        """Return how many jobs to ask for: what may be sent soon, within the bounds of what is held."""
        settings, hand = self._settings, self._hand
        left = settings.max_held_bytes - hand.size
        if left <= 0:
            return 0
        limit = self._flow.limit
        soon = limit + max(2, limit // 4) - self._flow.in_flight - hand.ready
        # The queue does not say how large the next bodies are.
        fitting = max(1, int(left / max(self._mean_body, 1.0)))
        return max(0, min(soon, settings.max_held - len(hand), fitting, _RECEIVE_MOST))

    def _pump(self) -> None:
        """Send what may be sent now, and set the timer for what may be sent later."""
        now = self._now()
        room = min(self._flow.room(now), self._settings.max_in_flight - len(self._tasks))
        while room > 0 and not self.is_draining and (held := self._hand.next(now)) is not None:
            room -= 1
            self._start(self._run(held, self._flow.sent(now)))
        self._set_timer(now)
        self._room.set()

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._hand.next_due()
        if self._hand.ready and self._flow.paused_until > now:
            due = self._flow.paused_until if due is None else min(due, self._flow.paused_until)
        elif due is not None:
            due = max(due, self._flow.paused_until)
        if due is not None and due > now:
            self._timer = asyncio.get_running_loop().call_at(due, self._pump)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # The job stays in the queue and comes again by its time-out.
            _log.error("a job was given up by a fault of the subscriber", exc_info=fault)
        self._pump()

    # One job.

    async def _run(self, held: Held, ticket: Ticket) -> None:
        outcome, wait_s = Outcome.ABORTED, 0.0
        decision: Decision | None = None
        answer: Answer | None = None
        try:
            if held.delivery.deliveries > 1 and await self._settlement.is_known(held):
                return
            decision = self._before_sending(held)
            if decision is None:
                answer, decision = await self._send(held)
                outcome = outcome_of(answer, decision)
                wait_s = decision.delay_s
        finally:
            now = self._now()
            self._flow.ended(now, ticket, outcome, wait_s)
            if decision is None:
                self._hand.remove(held)
            elif outcome is Outcome.SERVED:
                self._served_at = now
            self._pump_soon()
        if decision is not None:
            await self._do(held, decision, answer)

    def _before_sending(self, held: Held) -> Decision | None:
        if held.is_cancelled:
            return CANCELLED
        if self.is_draining:
            return DRAINED
        return before_sending(held.job, held.delivery.deliveries, self._clock(), self._limits)

    async def _send(self, held: Held) -> tuple[Answer | None, Decision]:
        """Return the answer and what to do; a request that was given up has a decision alone."""
        job = held.job
        left = expires_at(job, self._limits) - self._clock()
        timeout_s = max(0.01, min(self._settings.request_timeout_s, left))
        request = asyncio.ensure_future(self._gateway.post(job, timeout_s))
        self._requests[held.key] = request
        sent = self._now()
        try:
            answer = await request
        except asyncio.CancelledError:
            if not held.stop:
                request.cancel()
                raise
            self._metrics.count("aborted_requests", held.stop)
            return None, CANCELLED if held.is_cancelled else DRAINED
        except GatewayFault as fault:
            self._metrics.count("requests", "none")
            if self._clock() >= expires_at(job, self._limits):
                return None, CUT_OFF
            is_outage = fault.is_unreachable and self._is_outage()
            return None, after_failure(job, str(fault), self._random(), self._limits, is_outage=is_outage)
        finally:
            del self._requests[held.key]
        self._metrics.count("requests", str(answer.status))
        self._metrics.observe("request_seconds", self._now() - sent)
        wait = retry_after(answer.retry_after, self._clock())
        return answer, after_answer(
            job, answer.status, wait, self._random(), self._limits, is_outage=self._is_outage()
        )

    async def _do(self, held: Held, decision: Decision, answer: Answer | None) -> None:
        """Carry a decision out."""
        match decision.next:
            case Next.FINISH | Next.END:
                await self._settle(held, decision, answer)
            case Next.LATER:
                if decision is not DRAINED:
                    self._metrics.count("retries", "later")
                if self.is_draining or held.is_lost:
                    await self._give_back(held)
                else:
                    self._hand.delay(held, self._now() + decision.delay_s)
            case Next.RETRY:
                self._metrics.count("retries", "retry")
                failed = held.job.failed(self._clock(), decision.detail)
                try:
                    await self._settlement.retry(held, failed, decision.delay_s)
                finally:
                    self._let_go(held)

    async def _settle(self, held: Held, decision: Decision, answer: Answer | None) -> None:
        try:
            await self._settlement.end(held, decision, answer)
        finally:
            self._let_go(held)

    def _let_go(self, held: Held) -> None:
        self._hand.remove(held)
        self._pump_soon()

    def _pump_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._pump)

    def _abort(self, held: Held, reason: str) -> None:
        request = self._requests.get(held.key)
        if request is not None and not held.stop:
            held.stop = reason
            request.cancel()

    def _cancel(self, held: Held) -> None:
        if held.is_under_way:
            self._abort(held, "cancelled")
        else:
            held.is_under_way = True
            self._start(self._settle(held, CANCELLED, None))

    async def _watch_picker(self, read_picker: Callable[[], Awaitable[Reading | None]]) -> None:
        while True:
            reading = await read_picker()
            if reading is not None:
                self._flow.read(self._now(), reading)
                self._pump()
            await asyncio.sleep(self._settings.read_every_s)

    def _is_outage(self) -> bool:
        return self._served_at is None or self._now() - self._served_at > self._limits.outage_s

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
