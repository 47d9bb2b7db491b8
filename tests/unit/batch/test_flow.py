"""The flow's limit, with numbers worked out by hand, and what always holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_subscriber.flow import Flow, FlowSettings, Outcome, Reading, Ticket


def filled(flow: Flow, now: float = 0.0) -> list[Ticket]:
    return [flow.sent(now) for _ in range(flow.room(now))]


def test_each_answer_raises_the_limit_by_one_until_the_first_refusal() -> None:
    flow = Flow(FlowSettings(first=4))
    tickets = filled(flow)
    assert len(tickets) == 4
    for ticket in tickets:
        flow.ended(1.0, ticket, Outcome.SERVED)
        filled(flow, 1.0)
    assert flow.limit == 8


def test_an_unused_limit_does_not_grow() -> None:
    flow = Flow(FlowSettings(first=4))
    for _ in range(10):
        flow.ended(1.0, flow.sent(0.0), Outcome.SERVED)
    assert flow.limit == 4


def test_a_refusal_lowers_the_limit_once_for_all_that_were_sent_before() -> None:
    flow = Flow(FlowSettings(first=20, decrease=0.5))
    tickets = filled(flow)
    flow.ended(1.0, tickets.pop(), Outcome.BUSY, 5.0)
    # 19 in flight and the refused one, halved.
    assert flow.limit == 10
    for ticket in tickets[:9]:
        flow.ended(1.1, ticket, Outcome.BUSY, 5.0)
    assert flow.limit == 10
    assert flow.in_flight == 10
    assert flow.room(1.1) == 0


def test_after_a_refusal_the_limit_grows_by_one_for_a_whole_round() -> None:
    flow = Flow(FlowSettings(first=20, decrease=0.5))
    first = filled(flow)
    flow.ended(1.0, first.pop(), Outcome.BUSY)
    for ticket in first:
        flow.ended(2.0, ticket, Outcome.ABORTED)
    tickets = filled(flow, 3.0)
    assert len(tickets) == 10
    for ticket in tickets:
        flow.ended(4.0, ticket, Outcome.SERVED)
        filled(flow, 4.0)
    # Ten answers raise it by a little less than 10 / 10.
    assert flow.limit == 10
    flow.ended(4.0, flow.sent(4.0), Outcome.SERVED)
    assert flow.limit == 11


def test_refused_with_nothing_in_flight_all_wait_for_retry_after() -> None:
    flow = Flow(FlowSettings(first=1))
    flow.ended(1.0, flow.sent(0.0), Outcome.BUSY, 7.0)
    assert flow.room(7.9) == 0
    assert flow.paused_until == 8.0
    assert flow.room(8.0) == 1


def test_a_saturated_pool_lowers_the_limit_and_a_free_one_raises_it_by_a_part() -> None:
    flow = Flow(FlowSettings(first=100, decrease=0.7, growth=0.2))
    filled(flow)
    flow.read(0.0, Reading(saturation=1.0))
    assert flow.limit == 70
    flow.in_flight = 70
    flow.read(0.5, Reading(saturation=0.5))
    assert flow.limit == 84


@pytest.mark.parametrize(
    ("queued", "limit"),
    [
        # 2 + 100 / 10 may wait, and half of them always shall.
        (2, 104),
        (6, 100),
        (12, 100),
        # The pool has taken 87; six more wait.
        (13, 93),
        (60, 70),
    ],
)
def test_on_a_full_pool_the_limit_goes_to_what_it_has_taken_and_a_few_that_wait(
    queued: int, limit: int
) -> None:
    flow = Flow(FlowSettings(first=100, queued=0.1, decrease=0.7))
    filled(flow)
    flow.read(0.0, Reading(saturation=1.2, queued=queued))
    assert flow.limit == limit


def test_on_a_pool_that_chat_fills_hardly_a_job_is_sent() -> None:
    flow = Flow(FlowSettings(first=100))
    for at in range(30):
        flow.in_flight = flow.limit
        flow.read(float(at), Reading(saturation=1.5, queued=flow.in_flight))
    assert flow.limit <= 2


def test_a_smaller_pool_gets_its_share_at_once() -> None:
    flow = Flow(FlowSettings(first=80))
    flow.read(0.0, Reading(replicas=8))
    flow.read(0.5, Reading(replicas=2))
    assert flow.limit == 20


def test_an_old_reading_does_not_count() -> None:
    flow = Flow(FlowSettings())
    flow.read(0.0, Reading(saturation=0.4))
    assert flow.reading(3.0).saturation == 0.4
    assert flow.reading(3.1) == Reading()


def test_replicas_and_their_measured_throughput_bound_the_limit() -> None:
    flow = Flow(FlowSettings(first=10, stretch=4.0))
    now = 0.0
    flow.read(now, Reading(replicas=2))
    # One request at a time, 0.5 s each: 2 a second on two replicas, so that 4 * 2 * 0.5 = 4 are justified.
    for _ in range(200):
        ticket = flow.sent(now)
        now += 0.5
        flow.ended(now, ticket, Outcome.SERVED)
    assert flow.limit == 4
    # A picker that shows its saturation knows better.
    flow.read(now, Reading(saturation=0.9, replicas=2))
    assert flow.limit == 10
    assert flow.room(now + 3.1) == 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "served", "busy", "failed", "read"]),
            st.floats(0, 5),
            st.floats(0, 3),
            st.integers(0, 50),
        ),
        max_size=60,
    ),
    st.integers(1, 50),
)
def test_the_limit_keeps_its_bounds_whatever_comes(
    events: list[tuple[str, float, float, int]], most: int
) -> None:
    flow = Flow(FlowSettings(first=4, most=most))
    now = 0.0
    tickets: list[Ticket] = []
    for kind, later, value, count in events:
        now += later
        if kind == "send":
            tickets.extend(flow.sent(now) for _ in range(min(flow.room(now), count)))
        elif kind == "read":
            flow.read(now, Reading(saturation=value, queued=count, replicas=count % 5))
        elif tickets:
            flow.ended(now, tickets.pop(), Outcome(kind), value)
        assert 1 <= flow.limit <= most
        assert flow.in_flight == len(tickets)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_end_frees_its_place(outcome: Outcome) -> None:
    flow = Flow(FlowSettings())
    flow.ended(1.0, flow.sent(0.0), outcome)
    assert flow.in_flight == 0
