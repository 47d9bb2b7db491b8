"""The worker on a virtual clock: what each answer leads to, and that a job ends once."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from batch_contracts import make_job, make_result
from batch_fakes import OK, MemoryGateway, MemoryQueue, MemoryStore, busy, in_turn, loop_time, taking
from batch_subscriber.answers import Answer, GatewayFault
from batch_subscriber.flow import Reading
from batch_subscriber.jobs import Cause, Job
from batch_subscriber.metrics import Metrics
from batch_subscriber.settings import Settings
from batch_subscriber.worker import Worker
from virtual_time import run_virtual

NEEDED = {"queue": "sqlite:/q", "results": "file:/r", "gateway": "http://gateway"}


class Stage:
    """A worker between a queue, a store and a gateway in memory."""

    def __init__(
        self,
        answer: Callable[[Job, int], Awaitable[Answer]],
        read_picker: Callable[[], Awaitable[Reading | None]] | None = None,
        **settings: object,
    ) -> None:
        self.queue, self.store, self.gateway = MemoryQueue(), MemoryStore(), MemoryGateway(answer)
        self.metrics = Metrics()
        self.worker = Worker(
            Settings.model_validate({**NEEDED, **settings}),
            self.queue,
            self.store,
            self.gateway,
            self.metrics,
            cancellations=self.queue,
            read_picker=read_picker,
            clock=loop_time,
            randomness=lambda: 0.5,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.ensure_future(self.worker.run())
        try:
            yield
        finally:
            self.worker.drain()
            await running

    async def until_empty(self) -> None:
        while self.queue.jobs:  # noqa: ASYNC110 - the queue is a list
            await asyncio.sleep(0.05)

    async def work_off(self, *jobs: Job) -> None:
        await self.queue.put(jobs)
        async with self.running():
            await self.until_empty()


def jobs(count: int) -> list[Job]:
    return [make_job(number, group="") for number in range(count)]


def test_every_job_has_its_answer_as_result() -> None:
    async def main() -> None:
        stage = Stage(taking(1.0))
        await stage.work_off(*jobs(30))
        assert sorted(result.job_id for result in stage.store.writes) == sorted(job.id for job in jobs(30))
        assert {(result.status, result.body, result.cause) for result in stage.store.writes} == {
            (200, OK.body, Cause.NONE)
        }
        assert b'headroom_batch_results_total{cause="none"} 30.0' in stage.metrics.page()

    run_virtual(main())


def test_no_more_are_in_flight_than_the_setting() -> None:
    async def main() -> None:
        stage = Stage(taking(1.0), max_in_flight=5, max_held=6)
        await stage.work_off(*jobs(60))
        assert stage.gateway.most_in_flight == 5

    run_virtual(main())


def test_a_refused_job_waits_its_retry_after_and_keeps_its_attempts() -> None:
    async def main() -> None:
        stage = Stage(in_turn(busy("20"), busy("20", status=503), OK), max_attempts=1)
        await stage.work_off(make_job(1))
        times = [at for at, _ in stage.gateway.sent]
        # One second in flight, twenty of Retry-After, and with 0.5 as randomness a twentieth more.
        assert [round(later - earlier, 3) for earlier, later in itertools.pairwise(times)] == [
            22,
            22,
        ]
        assert [result.attempts for result in stage.store.writes] == [0]

    run_virtual(main())


def test_a_passing_error_is_tried_again_with_a_doubling_wait() -> None:
    async def main() -> None:
        stage = Stage(in_turn(busy(status=500), busy(status=500), OK), backoff_s=2.0)
        await stage.work_off(make_job(1))
        times = [at for at, _ in stage.gateway.sent]
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        # One second in flight, 2 and 4 s of back-off, and up to 0.05 s until the queue is looked at.
        assert waits == [pytest.approx(3.0, abs=0.06), pytest.approx(5.0, abs=0.06)]
        assert [result.attempts for result in stage.store.writes] == [2]

    run_virtual(main())


def test_an_exhausted_job_has_a_result_and_a_dead_letter() -> None:
    async def main() -> None:
        stage = Stage(in_turn(busy(status=500)), max_attempts=3)
        await stage.work_off(make_job(1))
        (result,), (letter,) = stage.store.writes, stage.queue.dead
        assert (result.cause, result.status) == (Cause.EXHAUSTED, 500)
        assert letter.cause is Cause.EXHAUSTED
        assert letter.job is not None
        assert letter.job.body == make_job(1).body
        assert [failure.cause for failure in letter.job.failures][:2] == ["status 500", "status 500"]
        assert letter.job.attempts == 3

    run_virtual(main())


def test_an_answer_of_400_is_final_and_kept() -> None:
    async def main() -> None:
        refused = Answer(400, "application/json", None, b'{"error":"too long"}')
        stage = Stage(in_turn(refused))
        await stage.work_off(make_job(1))
        (result,) = stage.store.writes
        assert (result.cause, result.status, result.body) == (Cause.REFUSED, 400, refused.body)
        assert [letter.cause for letter in stage.queue.dead] == [Cause.REFUSED]
        assert len(stage.gateway.sent) == 1

    run_virtual(main())


def test_an_outage_exhausts_no_job() -> None:
    async def main() -> None:
        is_down = True

        async def answer(_: Job, __: int) -> Answer:
            await asyncio.sleep(0.1)
            if is_down:
                raise GatewayFault("ClientConnectorError", is_unreachable=True)
            return OK

        stage = Stage(answer, max_attempts=2, outage_s=5.0)
        await stage.queue.put(jobs(3))
        async with stage.running():
            await asyncio.sleep(100)
            assert stage.store.writes == []
            is_down = False
            await stage.until_empty()
        assert [result.status for result in stage.store.writes] == [200] * 3
        assert stage.queue.dead == []

    run_virtual(main())


def test_a_poisonous_job_beside_others_is_exhausted() -> None:
    async def main() -> None:
        async def answer(job: Job, _: int) -> Answer:
            await asyncio.sleep(1.0)
            if job.id == "job-0":
                raise GatewayFault("ServerDisconnectedError", is_unreachable=True)
            return OK

        stage = Stage(answer, max_attempts=3, max_in_flight=4, max_held=8)
        await stage.work_off(*jobs(100))
        assert [result.cause for result in stage.store.writes if result.job_id == "job-0"] == [
            Cause.EXHAUSTED
        ]
        assert len(stage.store.writes) == 100

    run_virtual(main())


def test_an_expired_job_is_not_sent() -> None:
    async def main() -> None:
        stage = Stage(taking(1.0))
        await stage.work_off(make_job(1, deadline=1000.0), make_job(2, submitted_at=1.0, deadline=None))
        assert [result.cause for result in stage.store.writes if result.job_id == "job-1"] == [Cause.EXPIRED]
        assert [job_id for _, job_id in stage.gateway.sent] == ["job-2"]

    run_virtual(main())


def test_a_job_whose_deadline_passes_in_flight_expires() -> None:
    async def main() -> None:
        async def answer(_: Job, __: int) -> Answer:
            await asyncio.sleep(8.0)
            raise GatewayFault("no whole answer within 8 s")

        stage = Stage(answer)
        await stage.work_off(make_job(1, deadline=1005.0))
        assert [(result.cause, result.status) for result in stage.store.writes] == [(Cause.EXPIRED, 0)]

    run_virtual(main())


def test_a_long_request_is_delivered_once() -> None:
    async def main() -> None:
        stage = Stage(taking(300.0), visibility_s=10)
        await stage.work_off(make_job(1))
        assert stage.queue.received == 1
        assert len(stage.gateway.sent) == 1

    run_virtual(main())


def test_past_the_cap_a_job_comes_again_and_has_one_result() -> None:
    async def main() -> None:
        stage = Stage(taking(300.0), visibility_s=10, max_hold_s=30)
        other = Stage(taking(300.0), visibility_s=10, max_hold_s=30)
        second = Worker(
            Settings.model_validate({**NEEDED, "visibility_s": 10}),
            stage.queue,
            stage.store,
            other.gateway,
            Metrics(),
            clock=loop_time,
        )
        await stage.queue.put([make_job(1)])
        async with stage.running():
            await asyncio.sleep(5)
            running = asyncio.ensure_future(second.run())
            await stage.until_empty()
            second.drain()
            await running
        assert stage.queue.received >= 2
        assert len(stage.gateway.sent) == 1
        assert len(other.gateway.sent) <= 1
        assert len(stage.store.kept) == 1

    run_virtual(main())


def test_a_job_that_comes_again_to_the_same_process_is_sent_once() -> None:
    async def main() -> None:
        stage = Stage(taking(300.0), visibility_s=10, max_hold_s=30)
        await stage.work_off(make_job(1))
        assert stage.queue.received > 1
        assert len(stage.gateway.sent) == 1
        assert len(stage.store.writes) == 1

    run_virtual(main())


def test_a_job_that_came_again_and_has_a_result_is_not_sent() -> None:
    async def main() -> None:
        stage = Stage(taking(1.0), visibility_s=10)
        await stage.queue.put([make_job(1)])
        (lost,) = await stage.queue.receive(1, 5.0, 0.0)
        stage.store.kept[(lost.job.id, lost.job.generation)] = make_result(lost.job)
        async with stage.running():
            await stage.until_empty()
        assert stage.gateway.sent == []
        assert stage.store.writes == []

    run_virtual(main())


def test_a_store_that_is_down_for_a_while_costs_no_second_inference() -> None:
    async def main() -> None:
        stage = Stage(taking(1.0), visibility_s=10)
        stage.store.is_down = True
        await stage.queue.put(jobs(3))
        async with stage.running():
            await asyncio.sleep(120)
            assert len(stage.queue.jobs) == 3
            stage.store.is_down = False
            await stage.until_empty()
        assert len(stage.gateway.sent) == 3
        assert len(stage.store.kept) == 3

    run_virtual(main())


def test_a_queue_that_is_down_for_a_while_loses_nothing() -> None:
    async def main() -> None:
        stage = Stage(taking(5.0), visibility_s=60)
        await stage.queue.put(jobs(3))
        async with stage.running():
            await asyncio.sleep(1)
            stage.queue.is_down = True
            await asyncio.sleep(10)
            assert not stage.worker.is_queue_up
            stage.queue.is_down = False
            await stage.until_empty()
            assert stage.worker.is_queue_up
        assert len(stage.store.kept) == 3

    run_virtual(main())


def test_a_cancelled_group_ends_within_a_second_and_frees_its_requests() -> None:
    async def main() -> None:
        stage = Stage(taking(500.0), max_in_flight=2, max_held=4)
        await stage.queue.put([make_job(number) for number in range(4)])
        async with stage.running():
            await asyncio.sleep(10)
            assert stage.gateway.in_flight == 2
            await stage.queue.cancel("batch-1")
            await asyncio.sleep(1.0)
            assert stage.gateway.in_flight == 0
            await stage.until_empty()
        assert {result.cause for result in stage.store.writes} == {Cause.CANCELLED}
        assert len(stage.store.writes) == 4
        assert stage.queue.dead == []

    run_virtual(main())


def test_jobs_of_a_cancelled_group_that_come_later_are_not_sent() -> None:
    async def main() -> None:
        stage = Stage(taking(500.0), max_in_flight=2, max_held=4)
        await stage.queue.put([make_job(number) for number in range(40)])
        async with stage.running():
            await asyncio.sleep(10)
            await stage.queue.cancel("batch-1")
            await stage.until_empty()
        assert len(stage.gateway.sent) == 2
        assert [result.cause for result in stage.store.writes] == [Cause.CANCELLED] * 40

    run_virtual(main())


def test_sigterm_gives_back_what_is_not_sent_and_lets_the_rest_end() -> None:
    async def main() -> None:
        stage = Stage(taking(10.0), max_in_flight=2, max_held=4, drain_s=20)
        await stage.queue.put(jobs(10))
        async with stage.running():
            await asyncio.sleep(1)
        assert len(stage.store.kept) == 2
        assert len(await stage.queue.receive(20, 60.0, 0.0)) == 8
        assert stage.gateway.aborted == []

    run_virtual(main())


def test_after_the_drain_time_requests_are_given_up_and_their_jobs_back() -> None:
    async def main() -> None:
        stage = Stage(taking(1000.0), drain_s=5)
        await stage.queue.put(jobs(2))
        async with stage.running():
            await asyncio.sleep(1)
        assert sorted(stage.gateway.aborted) == ["job-0", "job-1"]
        got = await stage.queue.receive(20, 60.0, 0.0)
        assert [delivery.job.attempts for delivery in got] == [0, 0]

    run_virtual(main())


def test_a_full_pool_is_sent_little_and_a_free_one_much() -> None:
    async def main() -> None:
        saturation = 2.0

        async def read() -> Reading:
            return Reading(saturation=saturation, replicas=4)

        stage = Stage(taking(2.0), read, first_in_flight=32, max_in_flight=64)
        await stage.queue.put(jobs(1500))
        async with stage.running():
            await asyncio.sleep(10)
            assert stage.gateway.in_flight <= 1
            saturation = 0.2
            await asyncio.sleep(20)
            assert stage.gateway.in_flight > 40
            stage.queue.jobs.clear()

    run_virtual(main())


def test_what_is_held_is_bounded_by_jobs_and_by_bytes() -> None:
    async def main() -> None:
        stage = Stage(
            taking(50.0), first_in_flight=64, max_in_flight=64, max_held=64, max_held_bytes=9 * 2**20
        )
        await stage.queue.put([make_job(number, body=b"x" * 2**20, group="") for number in range(100)])
        async with stage.running():
            await asyncio.sleep(40)
            # The mean falls from 8 MiB by half of the difference at each call, so that the bound is kept.
            assert 8 <= stage.queue.received <= 9
            stage.queue.jobs.clear()

    run_virtual(main())
