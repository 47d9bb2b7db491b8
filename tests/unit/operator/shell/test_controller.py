"""The controller on a recording API server and virtual time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from inference_operator.core.kinds import CONFIG_MAP, CRD, POOL, Kind, Object
from inference_operator.core.settings import Settings
from inference_operator.shell.controller import Controller
from inference_operator.shell.metrics import REGISTRY
from observations import pool_body
from scripted_connection import ScriptedConnection
from virtual_time import run_virtual

INTERVAL = 60.0
#: Read live in each pass over a pool whose Service no cache knows: one for each pass.
SERVICE_OF = "GET /api/v1/namespaces/ns/services/{}-epp"
LIST_POOLS = f"GET {POOL.path()}"


@dataclass
class FakeWatch:
    """Watches that stand as a test says."""

    kinds: frozenset[Kind]
    controller: Controller
    has_ended: bool = False
    problem: str = ""
    abandoned: bool = False
    ends: bool = True
    broken: dict[Kind, tuple[float, str]] = field(default_factory=dict)

    def down(self) -> dict[Kind, tuple[float, str]]:
        return self.broken

    def neglect(self) -> str:
        return self.problem

    def abandon(self) -> None:
        self.abandoned = True
        self.has_ended = self.ends


@dataclass
class Run:
    """A controller at work, with everything that it was given."""

    connection: ScriptedConnection
    controller: Controller
    watches: list[FakeWatch]
    task: "asyncio.Task[None]"
    may_write: asyncio.Event

    def passes(self, pool: str = "llm") -> list[float]:
        return self.connection.times(SERVICE_OF.format(pool))

    def part(self, name: str) -> "asyncio.Task[Any]":
        return next(task for task in asyncio.all_tasks() if task.get_name() == name)


def drive(
    body: Callable[[Run], Awaitable[None]],
    *pools: str,
    workers: int = 1,
    watch_ends: bool = True,
    may_write: bool = True,
) -> None:
    """Run a test against a controller that leaves its pools alone, so that a pass is one known request."""

    async def main() -> None:
        connection = ScriptedConnection()
        for name in pools or ("llm",):
            connection.put(POOL, named(name))
        watches: list[FakeWatch] = []

        def start(kinds: frozenset[Kind], controller: Controller) -> FakeWatch:
            watches.append(FakeWatch(kinds, controller, ends=watch_ends))
            return watches[-1]

        settings = Settings(manage="annotated", resync_interval=INTERVAL, workers=workers)
        gate = asyncio.Event()
        if may_write:
            gate.set()
        controller = Controller(connection.api, settings, start, may_write=gate)
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(1.0)
        await body(Run(connection, controller, watches, task, gate))
        task.cancel()
        await asyncio.wait([task])

    run_virtual(main())


def named(name: str) -> Object:
    """Return a pool with a picker Service of its own."""
    return pool_body(name, f"{name}-epp")


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_every_pool_is_looked_at_when_the_operator_starts() -> None:
    async def body(run: Run) -> None:
        assert len(run.passes("one")) == len(run.passes("two")) == 1

    drive(body, "one", "two")


def test_an_event_does_not_wait_behind_the_looks_of_a_resync() -> None:
    names = [f"pool-{number}" for number in range(400)]

    async def body(run: Run) -> None:
        await asyncio.sleep(3.0)
        run.connection.latency = 0.5  # a pass takes longer than its share of the interval
        await asyncio.sleep(INTERVAL + 40.0)
        assert run.controller.backlog() > 10, "the resync's looks are late"
        changed = run.connection.put(POOL, named(names[-1]))
        began = asyncio.get_running_loop().time()
        run.controller.on_event(POOL, gone=False, body=changed)
        await asyncio.sleep(5.0)
        assert [at for at in run.passes(names[-1]) if at >= began], "looked at before the rest"

    drive(body, *names)


def test_the_looks_of_a_resync_are_spread_over_the_interval() -> None:
    names = [f"pool-{number}" for number in range(20)]

    async def body(run: Run) -> None:
        await asyncio.sleep(2 * INTERVAL)
        second = [run.passes(name)[1] for name in names]
        assert max(second) - min(second) > INTERVAL / 2
        assert all(len(run.passes(name)) >= 2 for name in names)

    drive(body, *names)


def test_a_crd_that_is_installed_during_a_resync_does_not_wait_for_the_next_regular_one() -> None:
    async def body(run: Run) -> None:
        crd = {"metadata": {"name": "c"}, "spec": {"group": POOL.group}}
        run.connection.latency = 0.3
        run.controller.on_event(CRD, gone=False, body=crd)
        await asyncio.sleep(3.0)  # the resync that it asked for runs
        lists = len(run.connection.times(LIST_POOLS))
        run.controller.on_event(CRD, gone=False, body=crd)
        await asyncio.sleep(INTERVAL * 0.8)
        assert len(run.connection.times(LIST_POOLS)) > lists + 1, "the second one is answered by another"

    drive(body)


@pytest.mark.parametrize("problem", ["the thread has ended", "configmaps: no stream and no request for 16 s"])
def test_a_watch_that_nothing_tends_to_is_given_up_and_begun_anew(
    problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted("headroom_operator_watch_restarts_total", reason="dead")

    async def body(run: Run) -> None:
        run.watches[0].problem = problem
        await asyncio.sleep(3.0)
        assert run.watches[0].abandoned
        assert len(run.watches) == 2
        assert counted("headroom_operator_watch_restarts_total", reason="dead") == before + 1

    with caplog.at_level(logging.WARNING):
        drive(body)
    assert problem in caplog.text


def test_a_watch_that_reports_nothing_of_what_a_list_shows_is_given_up() -> None:
    before = counted("headroom_operator_watch_restarts_total", reason="blind")

    async def body(run: Run) -> None:
        await asyncio.sleep(INTERVAL / 2)
        run.connection.put(POOL, named("unseen"))
        await asyncio.sleep(2 * INTERVAL)
        assert run.watches[0].abandoned
        assert len(run.watches) == 2
        assert counted("headroom_operator_watch_restarts_total", reason="blind") == before + 1
        assert run.passes("unseen"), "the list itself brought it to light"

    drive(body)


def test_a_watch_that_reports_what_a_list_shows_is_kept() -> None:
    async def body(run: Run) -> None:
        await asyncio.sleep(INTERVAL / 2)
        seen = run.connection.put(POOL, named("late"))
        await asyncio.sleep(INTERVAL / 2 + 1.0)  # the resync was first by a moment
        run.controller.on_event(POOL, gone=False, body=seen)
        gone = run.connection.drop(POOL, "late")
        await asyncio.sleep(INTERVAL)
        run.controller.on_event(POOL, gone=True, body=gone)
        await asyncio.sleep(INTERVAL)
        assert len(run.watches) == 1

    drive(body)


def test_what_was_deleted_before_a_stream_began_is_found_by_a_list() -> None:
    async def body(run: Run) -> None:
        run.connection.drop(POOL, "llm")
        passes = len(run.passes())
        run.controller.on_listed(run.watches[0], POOL)
        await asyncio.sleep(1.0)
        run.controller.wake(("ns", "llm"))
        await asyncio.sleep(1.0)
        assert len(run.passes()) == passes, "a pool that is gone has no Service"

    drive(body)


def test_an_end_that_is_reported_begins_the_watches_anew() -> None:
    async def body(run: Run) -> None:
        run.controller.on_end(run.watches[0], "configmaps: HTTP status 404")
        await asyncio.sleep(2.0)
        assert len(run.watches) == 2
        run.controller.on_end(run.watches[0], "its late echo")
        await asyncio.sleep(2.0)
        assert len(run.watches) == 2

    drive(body)


def test_liveness_fails_when_threads_that_were_given_up_never_end() -> None:
    async def body(run: Run) -> None:
        for _ in range(20):
            run.watches[-1].problem = "hung"
            await asyncio.sleep(10.0)
        assert run.controller.health().dead == ("watch",)
        assert len(run.watches) < 20, "no thread is begun beside so many"

    drive(body, watch_ends=False)


def test_readiness_says_that_the_api_server_is_out_of_reach_and_liveness_does_not() -> None:
    async def body(run: Run) -> None:
        assert run.controller.health().ready
        run.connection.problem = "connection refused"
        await asyncio.sleep(2 * INTERVAL)
        health = run.controller.health()
        assert not health.ready
        assert "connection refused" in health.resync_problem
        assert counted("headroom_operator_api_reachable") == 0.0
        assert not health.dead
        run.connection.problem = ""
        await asyncio.sleep(10.0)
        assert run.controller.health().ready
        assert counted("headroom_operator_api_reachable") == 1.0

    drive(body)


def test_readiness_names_the_kind_whose_watch_is_down() -> None:
    async def body(run: Run) -> None:
        run.watches[0].broken = {CONFIG_MAP: (1.0, "the stream ended")}
        assert run.controller.health().ready, "as long as a reconnection takes"
        run.watches[0].broken = {CONFIG_MAP: (3.0, "HTTP status 503")}
        health = run.controller.health()
        assert not health.ready
        assert health.not_watching == {"configmaps": "HTTP status 503"}
        assert not health.dead
        run.watches[0].broken = {}

    drive(body)


@pytest.mark.parametrize("name", ["resync", "lists", "watchdog", "worker-0"])
def test_a_part_that_dies_begins_anew_and_does_its_work(name: str) -> None:
    kind = name.partition("-")[0]
    before = counted("headroom_operator_part_restarts_total", part=kind)

    async def body(run: Run) -> None:
        run.part(name).cancel()
        await asyncio.sleep(3.0)
        assert counted("headroom_operator_part_restarts_total", part=kind) == before + 1
        lists, passes = len(run.connection.times(LIST_POOLS)), len(run.passes())
        run.controller.on_listed(run.watches[-1], POOL)
        await asyncio.sleep(1.0)
        assert len(run.connection.times(LIST_POOLS)) > lists, "lists"
        run.watches[-1].problem = "dead"
        await asyncio.sleep(3.0)
        assert len(run.watches) == 2, "watchdog"
        await asyncio.sleep(2 * INTERVAL)
        assert len(run.passes()) > passes, "resync and worker"
        assert not run.controller.health().dead

    drive(body)


def test_a_worker_that_dies_during_a_pass_does_not_keep_its_pool() -> None:
    async def body(run: Run) -> None:
        run.connection.latency = 5.0
        run.controller.wake(("ns", "llm"))
        await asyncio.sleep(1.0)
        run.part("worker-0").cancel()
        run.connection.latency = 0.0
        passes = len(run.passes())
        await asyncio.sleep(3.0)
        assert len(run.passes()) > passes

    drive(body)


def test_the_controller_ends_although_a_request_drops_its_cancellation() -> None:
    async def body(run: Run) -> None:
        run.connection.swallows = True
        run.connection.latency = 0.5
        run.controller.wake(("ns", "llm"))
        await asyncio.sleep(2.0)
        run.task.cancel()
        done, _ = await asyncio.wait([run.task], timeout=30.0)
        assert done

    drive(body)


def test_while_the_gate_is_closed_caches_follow_and_nothing_is_written() -> None:
    async def body(run: Run) -> None:
        controller, connection = run.controller, run.connection
        assert controller.health().ready
        assert len(run.watches) == 1
        controller.on_event(POOL, gone=False, body=connection.put(POOL, named("late")))
        lists = len(connection.times(LIST_POOLS))
        connection.put(POOL, named("listed"))
        await asyncio.sleep(1.5 * INTERVAL)
        assert len(connection.times(LIST_POOLS)) > lists, "the resync goes on"
        assert controller.backlog() == 3
        names = ("llm", "late", "listed")
        assert not any(run.passes(name) for name in names)
        asked = {call for _, call in connection.calls if not call.startswith(("GET", "WATCH"))}
        assert asked == {"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}
        run.may_write.set()
        await asyncio.sleep(0.1)
        assert [len(run.passes(name)) for name in names] == [1, 1, 1]
        assert controller.backlog() == 0

    drive(body, may_write=False)


def test_a_gate_that_closes_again_stops_the_workers_at_the_next_key() -> None:
    async def body(run: Run) -> None:
        await asyncio.sleep(1.0)
        run.may_write.clear()
        before = len(run.passes())
        run.controller.on_event(POOL, gone=False, body=run.connection.put(POOL, named("llm")))
        await asyncio.sleep(INTERVAL)
        assert len(run.passes()) == before
        run.may_write.set()
        await asyncio.sleep(0.1)
        assert len(run.passes()) == before + 1

    drive(body)


def test_a_stream_that_begins_while_its_kind_is_listed_has_it_listed_again() -> None:
    async def body(run: Run) -> None:
        run.connection.latency = 1.0
        watch = run.watches[0]
        lists = len(run.connection.times(LIST_POOLS))
        run.controller.on_listed(watch, POOL)
        await asyncio.sleep(0.5)  # the list is under way, and may have been read already
        run.controller.on_listed(watch, POOL)
        await asyncio.sleep(10.0)
        assert len(run.connection.times(LIST_POOLS)) == lists + 2

    drive(body)
