"""A queue, a store and a gateway in memory, for tests of the batch worker on a virtual clock."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from batch_subscriber.answers import Answer
from batch_subscriber.errors import QueueUnavailableError, StoreUnavailableError
from batch_subscriber.jobs import DeadLetter, Job, Result
from batch_subscriber.queues.interface import Backlog, Delivery


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class MemoryQueue:
    """Keeps jobs in a list, with the visibility time-outs of the loop's clock."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.due: dict[str, float] = {}
        self.deliveries: dict[str, int] = {}
        self.dead: list[DeadLetter] = []
        self.groups: set[str] = set()
        self.is_down = False
        self.received = 0

    def _delivery(self, job: Job) -> Delivery:
        number = self.deliveries[job.id]
        return Delivery(job, f"{job.id}/{number}", number)

    def _check(self) -> None:
        if self.is_down:
            raise QueueUnavailableError("down")

    def _held(self, delivery: Delivery) -> bool:
        job_id = delivery.job.id
        current = f"{job_id}/{self.deliveries.get(job_id)}" == delivery.handle
        return current and self.due.get(job_id, 0.0) > loop_time()

    def _remove(self, job_id: str) -> None:
        self.jobs = [job for job in self.jobs if job.id != job_id]

    async def put(self, jobs: Sequence[Job]) -> None:
        self.jobs.extend(jobs)

    async def receive(self, limit: int, visibility_s: float, wait_s: float) -> list[Delivery]:
        until = loop_time() + wait_s
        while True:
            self._check()
            now = loop_time()
            got = [job for job in self.jobs if self.due.get(job.id, 0.0) <= now][:limit]
            for job in got:
                self.due[job.id] = now + visibility_s
                self.deliveries[job.id] = self.deliveries.get(job.id, 0) + 1
            if got or now >= until:
                self.received += len(got)
                return [
                    Delivery(job, f"{job.id}/{self.deliveries[job.id]}", self.deliveries[job.id])
                    for job in got
                ]
            await asyncio.sleep(0.05)

    async def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> set[str]:
        self._check()
        lost = {delivery.handle for delivery in deliveries if not self._held(delivery)}
        for delivery in deliveries:
            if delivery.handle not in lost:
                self.due[delivery.job.id] = loop_time() + visibility_s
        return lost

    async def ack(self, delivery: Delivery) -> bool:
        self._check()
        if held := self._held(delivery):
            self._remove(delivery.job.id)
        return held

    async def nack(self, delivery: Delivery, job: Job, delay_s: float) -> None:
        self._check()
        if self._held(delivery):
            self.jobs = [job if one.id == job.id else one for one in self.jobs]
            self.due[job.id] = loop_time() + delay_s

    async def dead_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        self._check()
        self.dead.append(letter)
        self._remove(delivery.job.id)

    async def backlog(self) -> Backlog:
        self._check()
        return Backlog(len(self.jobs), 0, min((job.submitted_at for job in self.jobs), default=None))

    async def cancel(self, group: str) -> None:
        self.groups.add(group)

    async def cancelled(self, groups: Collection[str]) -> set[str]:
        return self.groups & set(groups)

    async def close(self) -> None:
        pass


class MemoryStore:
    """Keeps results in a dictionary, and every call of `write`."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Result] = {}
        self.writes: list[Result] = []
        self.is_down = False

    async def write(self, result: Result) -> bool:
        if self.is_down:
            raise StoreUnavailableError("down")
        self.writes.append(result)
        return self.kept.setdefault((result.job_id, result.generation), result) is result

    async def read(self, job_id: str, generation: str) -> Result | None:
        if self.is_down:
            raise StoreUnavailableError("down")
        return self.kept.get((job_id, generation))

    async def exists(self, job_id: str, generation: str) -> bool:
        return await self.read(job_id, generation) is not None

    async def close(self) -> None:
        pass


OK = Answer(200, "application/json", None, b'{"ok":true}')


class MemoryGateway:
    """Answers with what `answer` returns for a job and the number of its request, from 1."""

    def __init__(self, answer: Callable[[Job, int], Awaitable[Answer]]) -> None:
        self._answer = answer
        self.sent: list[tuple[float, str]] = []
        """When each request came, and its job's id."""
        self.in_flight = 0
        self.most_in_flight = 0
        self.aborted: list[str] = []

    async def post(self, job: Job, timeout_s: float) -> Answer:
        self.sent.append((loop_time(), job.id))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(job, sum(job_id == job.id for _, job_id in self.sent))
        except asyncio.CancelledError:
            self.aborted.append(job.id)
            raise
        finally:
            self.in_flight -= 1


def taking(seconds: float, answer: Answer = OK) -> Callable[[Job, int], Awaitable[Answer]]:
    """Return a gateway's answer to every request, after `seconds`."""

    async def give(_: Job, __: int) -> Answer:
        await asyncio.sleep(seconds)
        return answer

    return give


def in_turn(*answers: Answer | Exception, seconds: float = 1.0) -> Callable[[Job, int], Awaitable[Answer]]:
    """Return a gateway's answers to the requests of each job: one after the other, the last for ever."""

    async def give(_: Job, number: int) -> Answer:
        await asyncio.sleep(seconds)
        answer = answers[min(number, len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return give


def busy(retry_after: str | None = None, status: int = 429) -> Answer:
    return OK._replace(status=status, retry_after=retry_after)
