"""The adapters that pages show, and the memory of those that are idle in their slots."""

import math
from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from endpoint_picker.datalayer.adapters import MAX_ADAPTERS, MAX_KNOWN, AdapterColumns, AdapterReading
from endpoint_picker.datalayer.table import Endpoint, EndpointTable


def reading(running: str = "", waiting: str = "", slots: int = 2) -> AdapterReading:
    return AdapterReading(frozenset(running), frozenset(waiting), slots)


def test_an_idle_adapter_is_remembered_until_its_slot_is_needed() -> None:
    adapters = AdapterColumns(4)
    adapters.report(0, reading("a"), at=1.0)
    adapters.report(0, reading(), at=2.0)
    assert list(adapters.running("a")) == []
    assert list(adapters.resident("a")) == [0]
    assert (adapters.shown[0], adapters.held[0], adapters.idle_since[0]) == (0, 1, 1.0)
    adapters.report(0, reading("b"), at=3.0)
    adapters.report(0, reading("c"), at=4.0)
    assert list(adapters.resident("a")) == []
    assert list(adapters.of_row(0)) == ["b", "c"]
    assert adapters.idle_since[0] == 3.0


def test_what_was_sent_counts_at_once_but_only_a_name_that_a_server_has_shown() -> None:
    adapters = AdapterColumns(4)
    for row in (0, 1):
        adapters.report(row, reading(), at=0.0)
    adapters.sent(0, "any model that a client names", 1.0)
    assert not adapters.is_known("any model that a client names")
    assert adapters.held[0] == 0
    adapters.report(1, reading("a"), at=1.0)
    adapters.sent(0, "a", 2.0)
    assert sorted(adapters.resident("a")) == [0, 1]
    adapters.unload(0, "a")
    assert list(adapters.resident("a")) == [1]
    adapters.unload(1, "a")
    assert list(adapters.resident("a")) == [1], "its page shows it running"


def test_a_running_adapter_is_not_unloaded_and_a_waiting_one_counts_as_held() -> None:
    adapters = AdapterColumns(4)
    adapters.report(0, reading("ab", "cd"), at=1.0)
    assert (adapters.shown[0], adapters.held[0]) == (4, 4)
    assert adapters.idle_since[0] == math.inf
    assert list(adapters.waiting("c")) == [0]
    adapters.sent(0, "d", 2.0)
    assert set(adapters.of_row(0)) == {"a", "b", "d"}
    adapters.report(0, reading("d", "a"), at=3.0)
    assert list(adapters.waiting("a")) == [0]
    assert "d" in adapters.of_row(0)


def test_idle_adapters_are_forgotten_by_age_and_old_pages_are_not_believed() -> None:
    adapters = AdapterColumns(4)
    adapters.report(0, reading("ab"), at=1.0)
    adapters.report(0, reading("b"), at=5.0)
    adapters.forget_idle(before=2.0)
    assert list(adapters.of_row(0)) == ["b"]
    adapters.expire(np.array([True, False, False, False]))
    assert list(adapters.running("b")) == []
    assert adapters.slots[0] == 0
    assert list(adapters.resident("b")) == [0]
    adapters.report(0, None, at=6.0)
    assert adapters.slots[0] == 0


def test_a_server_that_leaves_takes_its_adapters_along_and_rows_may_grow() -> None:
    table = EndpointTable()
    table.replace([Endpoint("p", "default", "10.0.0.1", 8000)])
    (row,) = table.ready_rows.tolist()
    table.adapters.report(row, reading("a", "b"), at=1.0)
    table.attributes.write(row, ("x", "cost"), 3.0, 1.0)
    table.replace(Endpoint(f"p{n}", "default", f"10.0.1.{n}", 8000) for n in range(40))
    assert not table.adapters.resident("a")
    assert not table.adapters.running("a")
    assert not table.adapters.waiting("b")
    assert not table.adapters.held.any()
    assert np.isnan(table.attributes.column(("x", "cost"))[table.ready_rows]).all()
    last = int(table.ready_rows[-1])
    table.adapters.report(last, reading("a"), at=2.0)
    table.attributes.write(last, ("x", "cost"), 4.0, 2.0)
    assert list(table.adapters.running("a")) == [last]
    assert table.attributes.column(("x", "cost"))[last] == 4.0
    assert np.isnan(table.attributes.column(("x", "none"))).all()
    table.expire(now=10.0)
    assert np.isnan(table.attributes.column(("x", "cost"))[last])


def test_pages_and_clients_cannot_make_it_grow_without_bound() -> None:
    adapters = AdapterColumns(1)
    for at in range(MAX_KNOWN // 100 + 5):
        many = frozenset(f"{at}-{n}" for n in range(1000))
        adapters.report(0, AdapterReading(many, frozenset(), 10**9), at=float(at))
    assert adapters.shown[0] == MAX_ADAPTERS
    assert len(adapters.of_row(0)) <= 2 * MAX_ADAPTERS
    assert not adapters.is_known(min(f"0-{n}" for n in range(1000)))


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdefg")), max_size=60))
def test_the_memory_unloads_as_a_server_with_that_many_slots_does(requests: list[tuple[int, str]]) -> None:
    adapters = AdapterColumns(3)
    for name in "abcdefg":
        adapters.report(0, reading(name, slots=1), at=-1.0)
    for row in range(3):
        adapters.forget(row)
        adapters.report(row, reading(slots=3), at=0.0)
    servers: list[OrderedDict[str, None]] = [OrderedDict() for _ in range(3)]
    for at, (row, adapter) in enumerate(requests):
        adapters.sent(row, adapter, float(at))
        slots = servers[row]
        slots.pop(adapter, None)
        slots[adapter] = None
        if len(slots) > 3:
            slots.popitem(last=False)
    for row, slots in enumerate(servers):
        assert list(adapters.of_row(row)) == list(slots)
        assert adapters.held[row] == len(slots)
    for name in "abcdefg":
        assert sorted(adapters.resident(name)) == [row for row in range(3) if name in servers[row]]


def test_adapters_of_a_page_without_slots_are_forgotten_like_others() -> None:
    """Otherwise a server whose page shows adapters but no max_lora would keep the best score for good."""
    adapters = AdapterColumns(4)
    unknown_slots = AdapterReading(frozenset("a"), frozenset(), 0)
    adapters.report(0, unknown_slots, at=1.0)
    assert list(adapters.running("a")) == [0]
    adapters.expire(np.array([True, False, False, False]))
    assert list(adapters.running("a")) == []
    adapters.report(0, unknown_slots, at=2.0)
    adapters.report(0, None, at=3.0)
    assert list(adapters.running("a")) == []
