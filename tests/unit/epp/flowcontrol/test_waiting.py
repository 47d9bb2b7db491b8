"""The ends of a wait, on a clock that the test sets: every row of the table in flowcontrol/waiting.py."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from endpoint_picker.decision import Refusal
from endpoint_picker.flowcontrol.waiting import Released, WaitingDecision, WaitingRoom
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import MayWait

LATE = Refusal(Outcome.OVERLOADED, "waited too long")


class Queue(MayWait):
    """Releases the holds that a test lists."""

    __slots__ = ("due", "fails", "forgotten", "held", "ready")
    type_name = "queue"

    def __init__(self) -> None:
        self.held: list[Hold] = []
        self.ready: list[Hold] = []
        self.forgotten: list[Hold] = []
        self.due: float | None = None
        self.fails = False

    def hold(self, deadline: float) -> Hold:
        hold = Hold(deadline=deadline, refusal=LATE, forget=self.forget)
        self.held.append(hold)
        return hold

    def forget(self, hold: Hold) -> None:
        self.forgotten.append(hold)
        if self.fails:
            raise ZeroDivisionError

    @override
    def advance(self, now: float) -> tuple[Iterable[Hold], float | None]:
        if self.fails:
            raise ZeroDivisionError
        ready, self.ready = self.ready, []
        return ready, self.due


class Stage:
    def __init__(self, limit: int = 10) -> None:
        self.faults: list[Exception] = []
        self.room = WaitingRoom(self.faults.append, limit)
        self.queue = Queue()
        self.room.use([self.queue])

    def wait(self, deadline: float = 10.0, subset: list[str] | None = None) -> WaitingDecision:
        waiting = self.room.add(
            InferenceRequest(request_id="r"), subset, lambda _answer: None, self.queue.hold(deadline)
        )
        assert isinstance(waiting, WaitingDecision)
        return waiting


def ends(released: list[Released]) -> list[tuple[WaitingDecision, Refusal | None]]:
    return [(each.decision, each.refusal) for each in released]


def test_a_released_hold_is_decided_anew() -> None:
    stage = Stage()
    first, second = stage.wait(), stage.wait()
    stage.queue.ready = [second.hold]
    released, due = stage.room.advance(1.0)
    assert ends(released) == [(second, None)]
    assert due == 10.0
    assert len(stage.room) == 1
    assert stage.queue.forgotten == []
    stage.queue.ready = [second.hold]
    assert ends(stage.room.advance(1.0)[0]) == []
    assert not first.is_over


def test_the_earliest_of_deadlines_and_the_plugins_time_is_due_next() -> None:
    stage = Stage()
    assert stage.room.advance(0.0) == ([], None)
    stage.queue.due = 3.0
    assert stage.room.advance(0.0) == ([], 3.0)
    stage.wait(5.0)
    assert stage.room.advance(0.0) == ([], 3.0)
    stage.wait(2.0)
    assert stage.room.advance(0.0) == ([], 2.0)
    stage.queue.due = None
    assert stage.room.advance(0.0) == ([], 2.0)


def test_a_deadline_refuses_with_the_holds_refusal() -> None:
    stage = Stage()
    late, later = stage.wait(2.0), stage.wait(3.0)
    released, due = stage.room.advance(2.0)
    assert ends(released) == [(late, LATE)]
    assert stage.queue.forgotten == [late.hold]
    assert due == 3.0
    assert ends(stage.room.advance(9.0)[0]) == [(later, LATE)]
    assert len(stage.room) == 0


def test_a_cancelled_decision_is_never_released() -> None:
    stage = Stage()
    waiting = stage.wait(2.0)
    waiting.cancel()
    waiting.cancel()
    assert stage.queue.forgotten == [waiting.hold]
    stage.queue.ready = [waiting.hold]
    assert stage.room.advance(5.0) == ([], None)


def test_a_decision_that_was_released_can_still_be_cancelled() -> None:
    stage = Stage()
    waiting = stage.wait()
    stage.queue.ready = [waiting.hold]
    stage.room.advance(1.0)
    waiting.cancel()
    assert waiting.is_over
    assert stage.queue.forgotten == []


def test_waiting_again_does_not_prolong_the_deadline() -> None:
    stage = Stage()
    waiting = stage.wait(4.0)
    for _ in range(300):
        stage.queue.ready = [waiting.hold]
        assert ends(stage.room.advance(1.0)[0]) == [(waiting, None)]
        assert stage.room.again(waiting, stage.queue.hold(100.0)) is waiting
    assert stage.room.advance(1.0) == ([], 4.0)
    assert ends(stage.room.advance(4.0)[0]) == [(waiting, LATE)]


def test_no_endpoint_left_decides_anew_those_that_none_may_serve() -> None:
    stage = Stage()
    any_of_them, one = stage.wait(), stage.wait(subset=["10.0.0.1"])
    released = stage.room.endpoints_changed(lambda subset: subset is None)
    assert ends(released) == [(one, None)]
    assert stage.queue.forgotten == [one.hold]
    assert not any_of_them.is_over
    assert len(stage.room) == 1


def test_another_configuration_decides_anew_all_that_waits() -> None:
    stage, other = Stage(), Queue()
    first, second = stage.wait(), stage.wait()
    assert ends(stage.room.use([other])) == [(first, None), (second, None)]
    assert stage.queue.forgotten == [first.hold, second.hold]
    hold = other.hold(50.0)
    assert stage.room.again(first, hold) is first
    assert ends(stage.room.advance(10.0)[0]) == [(first, LATE)]
    assert other.forgotten == [hold]


def test_a_drain_refuses_what_waits_and_what_would() -> None:
    stage = Stage()
    waiting = stage.wait()
    ((decision, refusal),) = ends(stage.room.drain())
    assert decision is waiting
    assert refusal is not None
    assert refusal.outcome is Outcome.SHUTTING_DOWN
    hold = stage.queue.hold(9.0)
    answer = stage.room.add(InferenceRequest(request_id="r"), None, lambda _answer: None, hold)
    assert isinstance(answer, Refusal)
    assert answer.outcome is Outcome.SHUTTING_DOWN
    assert stage.queue.forgotten == [waiting.hold, hold]
    again = stage.queue.hold(9.0)
    assert stage.room.again(waiting, again) is answer


def test_no_more_wait_than_may() -> None:
    stage = Stage(limit=2)
    stage.wait()
    stage.wait()
    hold = stage.queue.hold(9.0)
    assert stage.room.add(InferenceRequest(request_id="r"), None, lambda _answer: None, hold) is LATE
    assert stage.queue.forgotten == [hold]


def test_a_plugin_that_fails_keeps_nothing_beyond_its_deadline() -> None:
    stage, sound = Stage(), Queue()
    stage.room.use([stage.queue, sound])
    stuck, other = stage.wait(2.0), stage.wait(9.0)
    sound.ready = [other.hold]
    stage.queue.fails = True
    released, due = stage.room.advance(1.0)
    assert ends(released) == [(other, None)]
    assert due == 2.0
    assert ends(stage.room.advance(2.0)[0]) == [(stuck, LATE)]
    assert [type(fault) for fault in stage.faults] == [ZeroDivisionError] * 3


@pytest.mark.parametrize("kind", ["fails midway", "gives nothing", "gives a time of no kind"])
def test_a_plugin_whose_release_fails_midway_keeps_nothing_beyond_its_deadline(kind: str) -> None:
    class Broken(Queue):
        __slots__ = ()

        @override
        def advance(self, now: float) -> tuple[Iterable[Hold], float | None]:
            if kind == "gives nothing":
                return None, None  # type: ignore[return-value]
            if kind == "gives a time of no kind":
                return self.ready, "soon"  # type: ignore[return-value]
            return self._holds(), None

        def _holds(self) -> Iterable[Hold]:
            yield from self.ready
            raise ZeroDivisionError

    stage, broken, sound = Stage(), Broken(), Queue()
    stage.room.use([broken, sound])
    first, stuck, other = stage.wait(3.0), stage.wait(2.0), stage.wait(9.0)
    broken.ready, sound.ready = [first.hold], [other.hold]
    released, due = stage.room.advance(1.0)
    kept = {id(decision) for decision, _ in ends(released)}
    assert kept == ({id(other)} if kind == "gives nothing" else {id(first), id(other)})
    assert due == 2.0
    assert (stuck, LATE) in ends(stage.room.advance(3.0)[0])
    assert len(stage.room) == 0
    assert stage.faults


def test_a_hold_given_for_two_decisions_makes_the_second_wait_for_nothing() -> None:
    stage = Stage()
    waiting = stage.wait(2.0)
    request = InferenceRequest(request_id="r")
    assert stage.room.add(request, None, lambda _answer: None, waiting.hold) is LATE
    assert stage.queue.forgotten == []
    assert ends(stage.room.advance(2.0)[0]) == [(waiting, LATE)]
    assert len(stage.faults) == 1


@pytest.mark.parametrize("deadline", [float("nan"), float("inf")])
def test_a_hold_without_a_deadline_does_not_wait(deadline: float) -> None:
    stage = Stage()
    hold = stage.queue.hold(deadline)
    answer = stage.room.add(InferenceRequest(request_id="r"), None, lambda _answer: None, hold)
    assert answer is LATE
    assert stage.queue.forgotten == [hold]
    assert len(stage.faults) == 1


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.sampled_from(["cancel", "release", "again"]), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["use", "drain", "gone"]), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=200)
@given(EVENTS)
def test_every_wait_has_exactly_one_end(events: list[tuple[str, int]]) -> None:
    stage = Stage(limit=8)
    room, queue = stage.room, stage.queue
    live: list[WaitingDecision] = []
    ended: list[WaitingDecision] = []
    now = 0.0

    def end(released: list[Released], *, again: bool = False) -> None:
        for each in released:
            assert each.decision in live
            if (
                again
                and each.refusal is None
                and room.again(each.decision, queue.hold(99.0)) is each.decision
            ):
                continue
            each.decision.is_over = True
            live.remove(each.decision)
            ended.append(each.decision)

    for what, number in events:
        match what:
            case "wait":
                hold = queue.hold(now + number)
                answer = room.add(InferenceRequest(request_id="r"), None, lambda _answer: None, hold)
                if isinstance(answer, WaitingDecision):
                    live.append(answer)
            case "cancel" if live:
                chosen = live.pop(number % len(live))
                chosen.cancel()
                ended.append(chosen)
            case "release" | "again" if live:
                queue.ready = [live[number % len(live)].hold]
                end(room.advance(now)[0], again=what == "again")
            case "pass":
                now += number
                end(room.advance(now)[0])
            case "use":
                end(room.use([queue]), again=True)
            case "drain":
                end(room.drain())
            case "gone":
                end(room.endpoints_changed(lambda _subset: False))
            case _:
                pass
    released, due = room.advance(now + 1000)
    end(released)
    assert live == []
    assert due is None
    assert len(room) == 0
    assert len(ended) == len(set(map(id, ended)))
    assert stage.faults == []


def test_deadlines_of_ended_waits_do_not_pile_up() -> None:
    stage = Stage(limit=1000)
    for _ in range(5000):
        stage.wait(1e9).cancel()
    assert len(stage.room._deadlines) < 200
    kept = stage.wait(7.0)
    assert ends(stage.room.advance(7.0)[0]) == [(kept, LATE)]


@pytest.mark.parametrize("fails", [False, True])
def test_an_owner_is_told_once_of_a_hold_that_ended_otherwise(fails: bool) -> None:
    stage = Stage()
    waiting = stage.wait()
    stage.queue.fails = fails
    waiting.cancel()
    stage.room.drain()
    assert stage.queue.forgotten == [waiting.hold]
    assert len(stage.faults) == fails


def optional(stage: Stage, deadline: float = 10.0) -> Hold:
    return Hold(deadline=deadline, refusal=None, forget=stage.queue.forget)


def added(stage: Stage, hold: Hold) -> WaitingDecision | Refusal | None:
    return stage.room.add(InferenceRequest(request_id="r"), None, lambda _answer: None, hold)


def test_a_hold_without_a_refusal_is_decided_anew_at_its_deadline() -> None:
    stage = Stage()
    hold = optional(stage)
    waiting = added(stage, hold)
    assert isinstance(waiting, WaitingDecision)
    assert ends(stage.room.advance(10.0)[0]) == [(waiting, None)]
    assert stage.queue.forgotten == [hold]


def test_a_hold_without_a_refusal_is_decided_anew_when_the_picker_drains_and_may_not_wait_after() -> None:
    stage = Stage()
    waiting = added(stage, optional(stage))
    assert isinstance(waiting, WaitingDecision)
    assert ends(stage.room.drain()) == [(waiting, None)]
    later = optional(stage)
    assert added(stage, later) is None
    assert stage.queue.forgotten == [waiting.hold, later]


def test_a_hold_without_a_refusal_is_decided_at_once_when_the_room_is_full() -> None:
    stage = Stage(limit=1)
    stage.wait()
    assert added(stage, optional(stage)) is None
