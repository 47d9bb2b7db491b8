"""Decisions that a plugin puts off, as the request life sees them: on a virtual clock and on a real loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pytest
from pydantic import Field
from typing_extensions import override

import envoy_messages as wire
from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.decision import Decision, Refusal, Waiting
from endpoint_picker.extproc.route import process_route
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import Follower, MayWait, PluginParams, Pool, Producer
from endpoint_picker.transport import Handler
from endpoint_picker.waiting_timer import WaitingTimer
from ext_proc.budget import BodyBudget
from recording_stream import RecordingStream

FULL = Refusal(Outcome.SATURATED, "waited too long for room")
RECORD = Record(0.0)


class QueueParams(PluginParams):
    room: int = 1
    """Requests in flight at a time."""
    longest_wait_s: float = Field(default=5.0)
    every_s: float | None = None
    """Looks for room by time as well."""


class TestQueue(Producer, MayWait, Follower):
    """Lets so many requests in at a time, in the order of their coming."""

    __test__ = False
    __slots__ = ("_in", "_pool", "_queue", "params")
    type_name = "test-queue"
    params_type = QueueParams
    produces = frozenset({"room"})
    consumes = frozenset()

    def __init__(self, params: QueueParams) -> None:
        self.params = params
        self._queue: deque[Hold] = deque()
        self._in = 0
        self._pool: Pool

    @override
    def attach(self, pool: Pool) -> None:
        self._pool = pool

    @override
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Hold | None:
        if request.request_id == "faulty" and candidates.held is not None:
            raise ZeroDivisionError
        mine = candidates.held is not None and candidates.held.note is self
        if self._in < self.params.room and (mine or not self._queue) and request.request_id != "never":
            return None
        deadline = self._pool.clock() + self.params.longest_wait_s
        hold = Hold(deadline=deadline, refusal=FULL, forget=self._queue.remove, note=self)
        self._queue.append(hold)
        return hold

    @override
    def advance(self, now: float) -> tuple[Iterable[Hold], float | None]:
        due = None if self.params.every_s is None or not self._queue else now + self.params.every_s
        room = self.params.room - self._in
        return [self._queue.popleft() for _ in range(min(room, len(self._queue)))], due

    @override
    def decided(self, *_given: object) -> None:
        self._in += 1

    @override
    def ended(self, decision: Decision, record: Record) -> None:
        self._in -= 1
        self._pool.wake()


class ReadsRoom(Follower, Producer):
    """Makes the profile need the queue, and fails on what it follows."""

    __slots__ = ()
    type_name = "reads-room"
    produces = frozenset({"PrefixCacheMatchInfo"})
    consumes = frozenset({"room"})

    @override
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> None:
        candidates.prefix_matched = np.zeros(candidates.rows.size)

    @override
    def first_byte(self, decision: Decision, record: Record) -> None:
        raise ZeroDivisionError

    @override
    def ended(self, decision: Decision, record: Record) -> None:
        raise ZeroDivisionError


def config(**params: object) -> str:
    given = ", ".join(f"{name}: {value}" for name, value in params.items())
    return (
        f"plugins: [{{type: reads-room}}, {{type: test-queue, parameters: {{{given}}}}}, "
        "{type: prefix-cache-scorer}]"
    )


class Client:
    """Asks, and keeps what it is answered; at most once, and never while it asks."""

    def __init__(self, router: PoolRouter, subset: list[str] | None = None, name: str = "r") -> None:
        self._router = router
        self._asking = True
        self.late: list[Decision | Refusal] = []
        self.answer = router.decide(InferenceRequest(request_id=name), subset, self._resumed)
        self._asking = False

    def _resumed(self, answer: Decision | Refusal) -> None:
        assert not self._asking
        self.late.append(answer)

    @property
    def outcome(self) -> Outcome | None:
        (answer,) = self.late
        return answer.outcome if isinstance(answer, Refusal) else Outcome.PICKED

    def cancel(self) -> None:
        assert isinstance(self.answer, Waiting)
        self.answer.cancel()

    def end(self) -> None:
        answer = self.late[0] if self.late else self.answer
        assert isinstance(answer, Decision)
        self._router.ended(answer, RECORD)


class Stage:
    """A router on a virtual clock, driven as a simulation drives it."""

    def __init__(self, **params: object) -> None:
        self.now = 100.0
        self.due: float | None = None
        installed = Registry.installed()
        loaders: dict[str, Callable[[], object]] = {
            name: partial(installed.find, name, "") for name in installed.types
        }
        registry = Registry({**loaders, "test-queue": lambda: TestQueue, "reads-room": lambda: ReadsRoom})
        self.router = build_router(config_text=config(**params), clock=lambda: self.now, registry=registry)
        assert not self.router.config_error
        self.router.replace_endpoints(endpoints(3))
        self.router.wake_at = self._wake_at

    def _wake_at(self, due: float) -> None:
        self.due = due if self.due is None else min(self.due, due)

    def run(self, seconds: float = 0.0) -> None:
        until = self.now + seconds
        while self.due is not None and self.due <= until:
            self.now, self.due = max(self.now, self.due), None
            due = self.router.advance()
            if due is not None:
                self._wake_at(due)
        self.now = until


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(count)]


def test_a_decision_is_resumed_when_there_is_room_in_the_order_of_coming() -> None:
    stage = Stage()
    first, second, third = (Client(stage.router) for _ in range(3))
    assert isinstance(first.answer, Decision)
    assert stage.router.waiting == 2
    stage.run(1.0)
    assert second.late == []
    first.end()
    stage.run()
    assert second.outcome is Outcome.PICKED
    assert third.late == []
    second.end()
    stage.run()
    third.end()
    assert stage.router.ledger.held == 0
    assert stage.router.waiting == 0


def test_a_client_that_goes_is_never_resumed_and_keeps_no_place() -> None:
    stage = Stage()
    first, second, third = (Client(stage.router) for _ in range(3))
    second.cancel()
    second.cancel()
    first.end()
    stage.run(60.0)
    assert second.late == []
    assert third.outcome is Outcome.PICKED
    assert stage.router.ledger.held == 1


def test_the_deadline_refuses() -> None:
    stage = Stage(longestWaitS=2.0)
    Client(stage.router)
    waiting = Client(stage.router)
    stage.run(1.9)
    assert waiting.late == []
    stage.run(0.2)
    assert waiting.outcome is Outcome.SATURATED
    assert stage.router.ledger.held == 1


def test_a_plugin_may_look_by_time() -> None:
    stage = Stage(everyS=0.5, longestWaitS=60.0)
    first, second = Client(stage.router), Client(stage.router)
    first.end()
    stage.due = None  # as if it had not woken anything
    stage.router.wake_at(stage.now + 0.5)
    stage.run(0.6)
    assert second.outcome is Outcome.PICKED


@pytest.mark.parametrize("every", [0.0, -1.0])
def test_a_plugin_that_is_always_due_is_not_asked_without_a_pause(every: float) -> None:
    stage = Stage(everyS=every)
    Client(stage.router)
    waits = Client(stage.router)
    due = stage.router.advance()
    assert due is not None
    assert due > stage.now
    stage.due = due
    stage.run(6.0)
    assert waits.outcome is Outcome.SATURATED


def test_endpoints_that_go_refuse_those_that_they_could_serve() -> None:
    stage = Stage()
    Client(stage.router)
    one, any_of_them = Client(stage.router, ["10.0.0.2"]), Client(stage.router)
    stage.router.replace_endpoints(endpoints(2))
    assert one.outcome is Outcome.NO_ENDPOINTS
    assert any_of_them.late == []
    stage.router.replace_endpoints([])
    assert any_of_them.outcome is Outcome.NO_ENDPOINTS
    assert stage.router.waiting == 0


def test_a_swapped_configuration_decides_anew() -> None:
    stage = Stage()
    Client(stage.router)
    waiting = Client(stage.router)
    assert not stage.router.apply_config("plugins: 3")
    assert waiting.late == []
    assert stage.router.apply_config("")
    assert waiting.outcome is Outcome.PICKED


def test_a_decision_that_waits_again_under_another_configuration_keeps_its_deadline() -> None:
    stage = Stage(longestWaitS=5.0)
    Client(stage.router)
    waiting = Client(stage.router, name="never")
    stage.run(3.0)
    assert stage.router.apply_config(config(longestWaitS=50.0, room=2))
    assert stage.router.waiting == 1
    stage.run(1.9)
    assert waiting.late == []
    stage.run(0.2)
    assert waiting.outcome is Outcome.SATURATED


def test_a_drain_refuses_what_waits_and_what_would() -> None:
    stage = Stage()
    first, waiting = Client(stage.router), Client(stage.router)
    stage.router.drain()
    assert waiting.outcome is Outcome.SHUTTING_DOWN
    late = Client(stage.router)
    assert isinstance(late.answer, Refusal)
    assert late.answer.outcome is Outcome.SHUTTING_DOWN
    first.end()
    assert isinstance(Client(stage.router).answer, Decision)


def test_a_plugin_that_fails_on_a_released_decision_refuses_it(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    first, waiting = Client(stage.router), Client(stage.router, name="faulty")
    first.end()
    stage.run()
    assert waiting.outcome is Outcome.SATURATED
    assert "a plugin failed" in caplog.text


def test_a_receiver_that_fails_leaves_no_reservation(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    first = Client(stage.router)

    def fail(answer: Decision | Refusal) -> None:
        raise ZeroDivisionError(answer)

    stage.router.decide(InferenceRequest(request_id="r"), None, fail)
    third = Client(stage.router)
    stage.router.decide(InferenceRequest(request_id="never"), None, fail)
    first.end()
    stage.run()
    assert "a plugin failed" in caplog.text
    stage.run(60.0)
    assert third.outcome is Outcome.PICKED  # the place of the failed one was free again
    third.end()
    assert stage.router.ledger.held == 0


def test_a_decision_cancelled_by_an_earlier_answer_is_not_resumed() -> None:
    stage = Stage(room=2)
    holders = [Client(stage.router), Client(stage.router)]
    late: list[object] = []
    waiting: list[Waiting] = []

    def first(answer: Decision | Refusal) -> None:
        late.append(answer)
        waiting[1].cancel()

    for resume in (first, late.append):
        answer = stage.router.decide(InferenceRequest(request_id="r"), None, resume)
        assert isinstance(answer, Waiting)
        waiting.append(answer)
    for each in holders:
        each.end()
    stage.run()
    assert len(late) == 1


def test_followers_that_fail_keep_no_reservation_and_do_not_stop_the_others() -> None:
    stage = Stage()
    first = Client(stage.router)
    assert isinstance(first.answer, Decision)
    stage.router.first_byte(first.answer, RECORD)
    first.end()
    assert stage.router.ledger.held == 0
    assert isinstance(Client(stage.router).answer, Decision)  # the queue heard of the end


def on_the_wire(stage: Stage, metrics: PickerMetrics, budget: BodyBudget) -> tuple[RecordingStream, Handler]:
    stream = RecordingStream()
    handler = process_route(stage.router, budget, metrics, lambda: stage.now)(stream)
    handler.opened(())
    handler.received(wire.request_headers())
    handler.received(wire.request_body(wire.body_of(), end=True))
    return stream, handler


def test_a_request_whose_decision_waits_is_answered_on_its_stream_later() -> None:
    stage, metrics, budget = Stage(longestWaitS=2.0), PickerMetrics(), BodyBudget()
    first = Client(stage.router)
    waiting, _ = on_the_wire(stage, metrics, budget)
    gone, gone_handler = on_the_wire(stage, metrics, budget)
    late, _ = on_the_wire(stage, metrics, budget)
    assert waiting.sent == []
    gone_handler.ended()
    first.end()
    stage.run(1.0)
    assert wire.kinds(waiting.sent) == ["request_headers", "request_body"]
    assert late.sent == []
    stage.run(1.5)
    assert wire.kinds(late.sent) == ["immediate_response"]
    assert gone.sent == []
    assert stage.router.ledger.held == 1
    assert stage.router.waiting == 0
    assert metrics.open_exchanges == 1


async def test_the_timer_drives_the_same_router_on_the_event_loop() -> None:
    stage = Stage(longestWaitS=0.2)
    router = stage.router
    router.pool.clock = router._clock = time.monotonic
    timer = WaitingTimer(router, asyncio.get_running_loop())
    first, second, third = (Client(router) for _ in range(3))
    first.end()
    fourth: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    router.decide(InferenceRequest(request_id="r"), None, fourth.set_result)
    async with asyncio.timeout(20):
        await fourth
    assert second.outcome is Outcome.PICKED
    assert third.outcome is Outcome.SATURATED
    Client(router)
    timer.close()
    timer.close()


async def test_the_timer_fires_at_the_earliest_time_asked_for() -> None:
    stage = Stage()
    loop = asyncio.get_running_loop()
    timer = WaitingTimer(stage.router, loop)
    fired = asyncio.Event()
    waiting = Client(stage.router)
    assert isinstance(waiting.answer, Decision)
    stage.router.decide(InferenceRequest(request_id="r"), None, lambda _answer: fired.set())
    timer.arm(stage.now - 1.0)  # due already, and so earlier than what waits
    timer.arm(stage.now + 1e6)
    waiting.end()
    async with asyncio.timeout(20):
        await fired.wait()
    timer.close()
