"""What every queue, result store and set of cancelled groups of the batch subscriber must do.

An implementation's test inherits the class and gives the fixture that makes the thing under test.
"""

import asyncio
from dataclasses import replace

import pytest

from batch_subscriber.cancellations import Cancellations
from batch_subscriber.jobs import Cause, DeadLetter, Job, Result, dead_letter_key
from batch_subscriber.queues.interface import DeadLetters, Delivery, JobQueue
from batch_subscriber.results.interface import ResultStore

#: Awaited where a job must come; a queue returns as soon as it does.
PATIENCE_S = 20.0
#: Awaited where no job may come.
MOMENT_S = 0.05


def make_job(number: int = 1, **changes: object) -> Job:
    """Return a job with an id of its own."""
    job = Job(
        id=f"job-{number}",
        generation=f"g{number}",
        path="/v1/completions",
        body=b'{"model":"m","prompt":"\xc3\xa4"}',
        headers=(("x-tenant", "a"),),
        submitted_at=1000.0 + number,
        group="batch-1",
    )
    return replace(job, **changes)  # type: ignore[arg-type]


def make_result(job: Job, **changes: object) -> Result:
    """Return an answer to a job."""
    result = Result(
        job_id=job.id,
        generation=job.generation,
        group=job.group,
        status=200,
        content_type="application/json",
        body=b'{"text":"\xff"}',
        submitted_at=job.submitted_at,
        finished_at=2000.0,
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def make_letter(delivery: Delivery) -> DeadLetter:
    """Return the dead letter of a delivery."""
    job = delivery.job.failed(1500.0, "502")
    return DeadLetter(
        key=dead_letter_key(job), cause=Cause.EXHAUSTED, detail="3 attempts", at=1500.0, job=job, deliveries=3
    )


class QueueContract:
    """Tests of a queue. A subclass has the fixture `queue`, an empty one."""

    #: A visibility time-out that ends within the test, seconds, and one that does not.
    short_s = 0.5
    long_s = 60.0

    async def pass_time(self, seconds: float) -> None:
        """Let the queue's clock run on. A queue with a virtual clock overrides it."""
        await asyncio.sleep(seconds)

    async def one(self, queue: JobQueue, visibility_s: float | None = None) -> Delivery:
        """Receive one job; the queue must have one."""
        got = await queue.receive(1, self.long_s if visibility_s is None else visibility_s, PATIENCE_S)
        assert len(got) == 1
        return got[0]

    async def test_a_job_comes_as_it_was_put(self, queue: JobQueue) -> None:
        job = make_job(deadline=5000.0, objective="batch", body=b"\x00\xff", attempts=2)
        await queue.put([job])
        assert (await self.one(queue)).job == job

    async def test_a_held_job_is_hidden_and_an_acknowledged_one_gone(self, queue: JobQueue) -> None:
        await queue.put([make_job()])
        delivery = await self.one(queue, self.short_s)
        assert await queue.receive(5, self.long_s, MOMENT_S) == []
        assert await queue.ack(delivery)
        await self.pass_time(self.short_s * 2)
        assert await queue.receive(5, self.long_s, MOMENT_S) == []

    async def test_a_job_comes_again_after_its_time_out(self, queue: JobQueue) -> None:
        await queue.put([make_job()])
        first = await self.one(queue, self.short_s)
        await self.pass_time(self.short_s * 2)
        second = await self.one(queue)
        assert second.job == first.job
        assert second.handle != first.handle

    async def test_an_extended_job_stays_hidden(self, queue: JobQueue) -> None:
        await queue.put([make_job()])
        delivery = await self.one(queue, self.short_s)
        assert await queue.extend([delivery], self.long_s) == set()
        await self.pass_time(self.short_s * 2)
        assert await queue.receive(1, self.long_s, MOMENT_S) == []
        assert await queue.ack(delivery)

    async def test_a_late_delivery_cannot_give_back_a_job_that_another_holds(self, queue: JobQueue) -> None:
        await queue.put([make_job()])
        late = await self.one(queue, self.short_s)
        await self.pass_time(self.short_s * 2)
        holder = await self.one(queue)
        await queue.nack(late, late.job.failed(1.0, "late"), 0.0)
        assert await queue.receive(1, self.long_s, MOMENT_S) == []
        assert await queue.ack(holder)

    async def test_what_is_given_back_comes_after_its_delay_with_its_failures(self, queue: JobQueue) -> None:
        await queue.put([make_job()])
        delivery = await self.one(queue)
        failed = delivery.job.failed(1500.0, "502 from the gateway")
        await queue.nack(delivery, failed, self.short_s)
        assert await queue.receive(1, self.long_s, MOMENT_S) == []
        await self.pass_time(self.short_s * 1.5)
        again = await self.one(queue)
        assert again.job == failed
        assert again.job.attempts == 1

    async def test_several_receivers_never_share_a_job(self, queue: JobQueue) -> None:
        await queue.put([make_job(number) for number in range(40)])
        received: list[str] = []

        async def take() -> None:
            while got := await queue.receive(7, self.long_s, MOMENT_S):
                received.extend(delivery.job.id for delivery in got)

        await asyncio.gather(*(take() for _ in range(3)))
        # A receiver may find nothing while another takes what there is; none may come twice.
        assert len(received) == len(set(received))
        while got := await queue.receive(7, self.long_s, MOMENT_S):
            received.extend(delivery.job.id for delivery in got)
        assert sorted(received) == sorted(f"job-{number}" for number in range(40))

    async def test_a_dead_letter_leaves_the_queue(self, queue: JobQueue) -> None:
        await queue.put([make_job()])
        delivery = await self.one(queue, self.short_s)
        await queue.dead_letter(delivery, make_letter(delivery))
        await self.pass_time(self.short_s * 2)
        assert await queue.receive(1, self.long_s, MOMENT_S) == []

    async def test_backlog_counts_or_says_that_it_cannot(self, queue: JobQueue) -> None:
        await queue.put([make_job(1), make_job(2), make_job(3)])
        await self.one(queue)
        backlog = await queue.backlog()
        assert backlog.waiting in (None, 2)
        assert backlog.held in (None, 1)
        assert backlog.oldest_submitted_at in (None, 1001.0)


class DeadLettersContract:
    """Tests of dead letters. A subclass has the fixtures `queue`, an empty one, and `dead`, its letters."""

    async def _kill(self, queue: JobQueue, *numbers: int) -> list[DeadLetter]:
        await queue.put([make_job(number) for number in numbers])
        letters = []
        for _ in numbers:
            (delivery,) = await queue.receive(1, 60.0, PATIENCE_S)
            letters.append(make_letter(delivery))
            await queue.dead_letter(delivery, letters[-1])
        return sorted(letters, key=lambda letter: letter.key)

    async def test_a_letter_is_kept_whole(self, queue: JobQueue, dead: DeadLetters) -> None:
        (letter,) = await self._kill(queue, 1)
        assert await dead.letters(10) == [letter]
        assert await dead.letter(letter.key) == letter
        assert await dead.letter("no such") is None

    async def test_letters_come_in_pages(self, queue: JobQueue, dead: DeadLetters) -> None:
        letters = await self._kill(queue, 1, 2, 3)
        first = await dead.letters(2)
        assert first == letters[:2]
        assert await dead.letters(2, first[-1].key) == letters[2:]

    async def test_a_dropped_letter_is_gone(self, queue: JobQueue, dead: DeadLetters) -> None:
        (letter,) = await self._kill(queue, 1)
        assert await dead.drop(letter.key)
        assert not await dead.drop(letter.key)
        assert await dead.letters(10) == []


class StoreContract:
    """Tests of a result store. A subclass has the fixture `store`, an empty one."""

    async def test_a_result_is_read_as_it_was_written(self, store: ResultStore) -> None:
        result = make_result(make_job(), cause=Cause.EXHAUSTED, detail="three attempts", attempts=3)
        assert await store.write(result)
        assert await store.read(result.job_id, result.generation) == result

    async def test_the_first_result_stays(self, store: ResultStore) -> None:
        job = make_job()
        assert await store.write(make_result(job, body=b"first"))
        assert not await store.write(make_result(job, body=b"second"))
        kept = await store.read(job.id, job.generation)
        assert kept is not None
        assert kept.body == b"first"

    async def test_of_many_writers_one_wins(self, store: ResultStore) -> None:
        job = make_job()
        results = [make_result(job, body=b"%d" % number * 5000) for number in range(8)]
        won = await asyncio.gather(*(store.write(result) for result in results))
        assert won.count(True) == 1
        assert await store.read(job.id, job.generation) == results[won.index(True)]

    async def test_another_generation_has_another_result(self, store: ResultStore) -> None:
        job = make_job()
        await store.write(make_result(job))
        assert await store.exists(job.id, job.generation)
        assert not await store.exists(job.id, "other")
        assert await store.read(job.id, "other") is None
        assert await store.write(make_result(replace(job, generation="other")))

    @pytest.mark.parametrize("job_id", ["a/b", "..", "ä b", "x" * 256, "%2F", "A", "a"])
    async def test_any_id_has_a_place_of_its_own(self, store: ResultStore, job_id: str) -> None:
        assert await store.write(make_result(make_job(id="a.b")))
        result = make_result(make_job(id=job_id))
        assert await store.write(result)
        assert await store.read(job_id, result.generation) == result

    async def test_ids_that_differ_in_case_only_are_two(self, store: ResultStore) -> None:
        assert await store.write(make_result(make_job(id="Job")))
        assert await store.write(make_result(make_job(id="job")))


class CancellationsContract:
    """Tests of cancelled groups. A subclass has the fixture `cancellations`, an empty set."""

    async def test_a_cancelled_group_is_found_among_others(self, cancellations: Cancellations) -> None:
        assert await cancellations.cancelled(["a", "b"]) == set()
        await cancellations.cancel("a")
        await cancellations.cancel("a")
        assert await cancellations.cancelled(["a", "b"]) == {"a"}
        assert await cancellations.cancelled([]) == set()
