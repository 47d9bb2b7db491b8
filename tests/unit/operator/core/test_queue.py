from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from inference_operator.core.queue import FIRST_BACK_OFF, MOST_BACK_OFF, ROUTINE_SHARE, WorkQueue


def test_a_key_waits_once_and_at_its_earliest_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 5.0)
    queue.add("a", 3.0)
    queue.add("a", 9.0)
    assert len(queue) == 1
    assert queue.next_due() == 3.0
    assert queue.take(2.9) is None
    assert queue.take(3.0) == "a"
    assert queue.take(10.0) is None


def test_the_longest_due_comes_first() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key, due in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        queue.add(key, due)
    assert [queue.take(5.0) for _ in range(3)] == ["early", "middle", "late"]


def test_a_key_never_runs_twice_at_once_and_misses_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0)
    assert queue.take(1.0) == "a"
    queue.add("a", 1.0)
    assert queue.take(2.0) is None
    assert queue.next_due() is None
    queue.done("a")
    assert queue.take(2.0) == "a"


def test_back_off_doubles_to_its_limit_and_a_success_resets_it() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waits = []
    for _ in range(12):
        queue.add("a", 0.0)
        queue.take(1e9)
        waits.append(queue.failed("a", 0.0))
    assert waits[:3] == [FIRST_BACK_OFF, 2 * FIRST_BACK_OFF, 4 * FIRST_BACK_OFF]
    assert waits[-1] == MOST_BACK_OFF
    queue.take(1e9)
    queue.done("a")
    queue.add("a", 0.0)
    queue.take(1e9)
    assert queue.failed("a", 0.0) == FIRST_BACK_OFF


def test_an_event_brings_a_failed_key_back_sooner() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0)
    queue.take(0.0)
    queue.failed("a", 100.0)
    queue.add("a", 100.1)
    assert queue.take(100.1) == "a"


def test_a_pause_holds_whatever_asks() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 0.0)
    queue.take(0.0)
    queue.add("a", 1.0)
    queue.done("a", again_at=2.0, not_before=8.0)
    queue.add("a", 3.0)
    assert queue.take(7.9) is None
    assert queue.take(8.0) == "a"
    queue.done("a")
    queue.add("a", 9.0)
    assert queue.take(9.0) == "a"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100)), max_size=40))
def test_every_added_key_runs_exactly_once(adds: list[tuple[str, float]]) -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key, due in adds:
        queue.add(key, due)
    taken = []
    while (ran := queue.take(100.0)) is not None:
        taken.append(ran)
        queue.done(ran)
    assert sorted(taken) == sorted({key for key, _ in adds})


def test_a_key_that_was_asked_for_while_it_runs_is_waiting() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 1.0)
    assert queue.take(1.0) == "a"
    assert not queue.waiting("a")
    queue.add("a", 5.0)
    assert queue.waiting("a")


def test_an_event_goes_before_the_regular_looks() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for number in range(100):
        queue.add(f"pool-{number}", 0.0, routine=True)
    queue.add("changed", 9.0)
    assert queue.take(9.0) == "changed"


def test_a_regular_look_does_not_wait_for_ever_behind_events() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("regular", 0.0, routine=True)
    taken = []
    for number in range(ROUTINE_SHARE):
        queue.add(f"event-{number}", 0.0)
        taken.append(queue.take(1.0))
    assert "regular" in taken


def test_one_run_answers_an_event_and_a_regular_look() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 5.0, routine=True)
    queue.add("a", 1.0)
    assert len(queue) == 1
    assert queue.backlog(1.0) == 1
    assert queue.take(1.0) == "a"
    queue.done("a")
    assert queue.take(5.0) is None
    queue.add("a", 7.0, routine=True)
    assert not queue.waiting("a"), "nobody has asked for it"


class _Counted:
    """A key that counts how often any of its kind is compared or hashed."""

    looks = 0

    def __init__(self, number: int) -> None:
        self.number = number

    @override
    def __hash__(self) -> int:
        _Counted.looks += 1
        return hash(self.number)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Counted) and self.number == other.number


def test_taking_costs_no_look_at_every_key() -> None:
    queue: WorkQueue[_Counted] = WorkQueue()
    for number in range(5000):
        queue.add(_Counted(number), float(number))
    _Counted.looks = 0
    while (key := queue.take(1e9)) is not None:
        queue.done(key)
    assert _Counted.looks < 5000 * 20


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc"), st.floats(0, 100), st.booleans()),
            st.tuples(st.just("take"), st.just(""), st.floats(0, 100), st.booleans()),
            st.tuples(st.just("end"), st.just(""), st.floats(0, 100), st.booleans()),
        ),
        max_size=60,
    )
)
def test_nothing_that_was_added_is_lost_or_runs_twice_at_once(
    steps: list[tuple[str, str, float, bool]],
) -> None:
    queue: WorkQueue[str] = WorkQueue()
    asked: set[str] = set()
    running: list[str] = []
    for what, key, at, flag in steps:
        if what == "add":
            queue.add(key, at, routine=flag)
            asked.add(key)
        elif what == "take" and (taken := queue.take(at)) is not None:
            assert taken not in running
            running.append(taken)
            asked.discard(taken)
        elif what == "end" and running:
            ended = running.pop()
            queue.done(ended, not_before=at if flag else None)
    for each in running:
        queue.done(each)
    assert len(queue) == len(asked)
    drained = set()
    while (left := queue.take(1e9)) is not None:
        drained.add(left)
    assert drained == asked
