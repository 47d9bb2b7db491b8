from hypothesis import given
from hypothesis import strategies as st

from inference_operator.queue import FIRST_BACK_OFF, MOST_BACK_OFF, WorkQueue


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


def test_a_truce_holds_whatever_asks() -> None:
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
