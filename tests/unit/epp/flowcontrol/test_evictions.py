"""Requests below 0 at servers give way to more important ones that wait: which, how many, once each."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from endpoint_picker.outcomes import Outcome
from flow_pool import CONFIG, Asked, FlowPool

EVICTING = CONFIG + "  enableEviction: true\n"
PRIORITIES = {"high": 10, "normal": 0, "batch": -5, "worst": -9}
#: Four requests fill the queue of one server; pages are written by the tests.
METRICS = """
featureGates: [flowControl]
plugins:
- {type: utilization-detector, parameters: {queueDepthThreshold: 4, metricsStalenessThreshold: 100s}}
- {type: queue-scorer}
flowControl: {enableEviction: true, defaultRequestTTL: 500s}
"""


def pool_of(config: str = EVICTING, endpoints: int = 1) -> FlowPool:
    return FlowPool(config, endpoints, PRIORITIES)


def page(pool: FlowPool, waiting: float, kv: float = 0.1) -> None:
    """Read a page of the only server."""
    table, ledger = pool.router.table, pool.router.ledger
    ledger.scrape_started(0)
    table.waiting[0], table.running[0], table.kv_usage[0] = waiting, 8.0, kv
    table.scraped_at[0] = pool.now
    ledger.scrape_succeeded(0)
    table.scrapes += 1
    pool.router.page_read()
    pool.settle()


def evicted(pool: FlowPool) -> list[str]:
    return [each.request.request_id for each in pool.asked if each.evicted is not None]


def test_the_lowest_priority_goes_first_and_of_it_the_newest() -> None:
    pool = pool_of(endpoints=2)
    for objective in ("worst", "batch", "worst", "batch"):  # r0 to r3
        assert pool.ask(objective).is_dispatched
    for expected in ("r2", "r0", "r3", "r1"):
        before = set(evicted(pool))
        assert pool.ask("high").is_dispatched
        assert set(evicted(pool)) - before == {expected}
    assert pool.ask("high").waits  # nothing below 0 is left
    assert pool.router.ledger.held == 4


def test_the_refusal_says_why_and_when_to_come_back() -> None:
    pool = pool_of()
    batch = [pool.ask("batch"), pool.ask("batch")][-1]
    pool.wait(3.0)
    pool.ask("normal")
    refusal = batch.evicted
    assert refusal is not None
    assert refusal.outcome is Outcome.EVICTED
    assert refusal.retry_after is not None
    assert 1 <= refusal.retry_after <= 300
    (kept,) = (each for each in pool.router.decisions.of_request("r1") if each.refusal is not None)
    assert kept.refusal is refusal
    assert kept.priority == -5


@pytest.mark.parametrize("waits", ["batch", "worst"])
def test_only_a_higher_band_evicts(waits: str) -> None:
    pool = pool_of()
    pool.ask("batch")
    pool.ask("batch")
    assert pool.ask(waits).waits
    assert evicted(pool) == []


def test_requests_from_0_up_are_never_evicted() -> None:
    pool = pool_of()
    pool.ask("normal")
    pool.ask("normal")
    assert pool.ask("high").waits
    assert evicted(pool) == []


def test_without_the_key_nothing_is_evicted() -> None:
    pool = pool_of(CONFIG)
    pool.ask("batch")
    pool.ask("batch")
    assert pool.ask("high").waits
    assert evicted(pool) == []


def test_an_answer_that_has_begun_is_kept_and_the_next_one_goes() -> None:
    pool = pool_of()
    older, newer = pool.ask("batch"), pool.ask("batch")
    newer.has_begun = True
    assert pool.ask("high").is_dispatched
    assert (older.evicted is not None, newer.evicted) == (True, None)
    assert pool.ask("high").waits


def test_a_request_that_was_promised_its_turn_is_kept() -> None:
    promised = EVICTING + "  priorityBands: [{priority: -5, maxWait: 4s, minShare: 0.5}]\n"
    pool = pool_of(promised)
    first = [pool.ask("normal") for _ in range(2)]
    batch = pool.ask("batch")
    normal = [pool.ask("normal", prompt=100) for _ in range(4)]
    for each in first:
        each.end(prompt=100, output=100)
        pool.settle()
    for each in normal:
        if each.is_dispatched and not batch.is_dispatched:
            each.end(prompt=100, output=100)
            pool.settle()
    assert batch.is_dispatched
    pool.ask("high")
    assert evicted(pool) == []


def test_one_eviction_for_each_request_that_waits() -> None:
    pool = pool_of(METRICS)
    page(pool, 0)
    batch = [pool.ask("batch") for _ in range(4)]
    assert all(each.is_dispatched for each in batch)
    page(pool, 4)
    assert evicted(pool) == []
    assert pool.ask("high").is_dispatched
    assert evicted(pool) == ["r3"]
    page(pool, 4)  # the page still shows four, and one has been sent since: the server is not asked for more
    pool.wait(0.3)
    assert evicted(pool) == ["r3"]


def test_a_full_cache_costs_two_requests_until_pages_show_what_they_freed() -> None:
    pool = pool_of(METRICS)
    page(pool, 0)
    batch = [pool.ask("batch") for _ in range(4)]
    page(pool, 0, kv=0.9)
    high = [pool.ask("high") for _ in range(10)]
    assert not any(each.is_dispatched for each in high)
    assert sorted(evicted(pool)) == ["r2", "r3"]
    pool.wait(0.1)
    page(pool, 0, kv=0.9)  # asked for too soon: the server may not have ended them
    assert sorted(evicted(pool)) == ["r2", "r3"]
    pool.wait(0.2)
    page(pool, 0, kv=0.5)
    assert sum(each.is_dispatched for each in high) == 4
    assert sum(each.evicted is not None for each in batch) == 4
    pool.wait(0.3)
    page(pool, 4, kv=0.5)
    assert sum(each.is_dispatched for each in high) == 4


class EvictionMachine(RuleBasedStateMachine):
    """Whatever arrives, ends and begins: every slot is released once, and only for one that took it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = FlowPool(EVICTING, 2, PRIORITIES)
        self.seen: list[Asked] = []

    def running(self) -> list[Asked]:
        return [each for each in self.pool.asked if each.is_dispatched and not each.is_over]

    @rule(objective=st.sampled_from(sorted(PRIORITIES)), tenant=st.sampled_from("ab"))
    def arrive(self, objective: str, tenant: str) -> None:
        self.pool.ask(objective, tenant)

    @precondition(lambda self: any(self.running()))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.running())).has_begun = True

    @precondition(lambda self: any(self.running()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.running())).end(prompt=5, output=5)
        self.pool.settle()

    @precondition(lambda self: any(each.waits for each in self.pool.asked))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([each for each in self.pool.asked if each.waits])).cancel()
        self.pool.settle()

    @rule(numbers=st.sets(st.integers(1, 3), max_size=3))
    def endpoints(self, numbers: set[int]) -> None:
        self.pool.have(sorted(numbers))
        self.pool.settle()

    @rule(seconds=st.sampled_from([0.02, 0.6, 5.0]))
    def time(self, seconds: float) -> None:
        self.pool.wait(seconds)

    @invariant()
    def every_slot_is_released_once(self) -> None:
        assert self.pool.router.ledger.held == len(self.running())

    @invariant()
    def only_sheddable_requests_that_had_not_begun_are_ended(self) -> None:
        for each in self.pool.asked:
            if each.evicted is not None:
                assert each.request.priority < 0
                assert not each.has_begun
                assert len(each.answers) == 1

    @invariant()
    def room_that_was_made_was_needed_and_the_order_held(self) -> None:
        pool, new = self.pool, [each for each in self.pool.asked if each.evicted and each not in self.seen]
        self.seen += new
        table = pool.router.table
        if new:  # either its room was taken, or the pool is full all the same
            assert table.inflight_requests[table.ready_rows].sum() >= 2 * table.ready_rows.size
        for ended in new:
            for other in self.running():
                row = other.decision.reservations[0]
                here = table.is_current(row.row, row.generation) and table.ready[row.row]
                if here and not other.has_begun and other.request.priority < 0:
                    order = [(-each.request.priority, pool.answered.index(each)) for each in (ended, other)]
                    assert order[0] > order[1]

    @override
    def teardown(self) -> None:
        for each in self.running():
            each.end()
        self.pool.settle()
        assert len(self.pool.flow._evictions) <= len(self.running())
        for each in self.running():
            each.end()
        assert self.pool.router.ledger.held == 0


EvictionMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestEvictions = EvictionMachine.TestCase
