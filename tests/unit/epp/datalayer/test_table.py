"""The endpoint table: identity of rows, readiness, lookup by address, growth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_picker.datalayer.table import Endpoint, EndpointTable


def endpoint(number: int, **changes: object) -> Endpoint:
    fields: dict[str, object] = {
        "name": f"pod-{number}-rank-0",
        "namespace": "default",
        "address": f"10.0.0.{number}",
        "port": 8000,
    }
    return Endpoint(**{**fields, **changes})  # type: ignore[arg-type]


def row_at(table: EndpointTable, hostport: str) -> int:
    (row,) = table.rows_of([hostport]).tolist()
    return int(row)


def test_endpoints_that_stay_keep_their_row_and_columns() -> None:
    table = EndpointTable()
    table.replace([endpoint(1), endpoint(2)])
    row = row_at(table, "10.0.0.2:8000")
    table.waiting[row] = 7
    assert table.replace([endpoint(2), endpoint(3)])
    assert row_at(table, "10.0.0.2:8000") == row
    assert table.waiting[row] == 7
    assert table.rows_of(["10.0.0.1:8000"]).size == 0


def test_replacing_by_the_same_changes_nothing() -> None:
    table = EndpointTable()
    assert table.replace([endpoint(1), endpoint(2)])
    version = table.version
    assert not table.replace([endpoint(2), endpoint(1)])
    assert table.version == version


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"incarnation": "restarted"}, id="container restarted"),
        pytest.param({"address": "10.0.0.9"}, id="another address"),
        pytest.param({"port": 8001}, id="another port"),
    ],
)
def test_another_server_under_the_same_name_starts_afresh(changed: dict[str, object]) -> None:
    table = EndpointTable()
    table.replace([endpoint(1)])
    row, generation = 0, 0
    row = int(table.ready_rows[0])
    generation = int(table.generation[row])
    table.waiting[row] = 3
    table.inflight_requests[row] = 5
    table.replace([endpoint(1, **changed)])
    assert not table.is_current(row, generation)
    now = int(table.ready_rows[0])
    assert np.isnan(table.waiting[now])
    assert table.inflight_requests[now] == 0


def test_an_unready_endpoint_keeps_its_row_but_is_not_found() -> None:
    table = EndpointTable()
    table.replace([endpoint(1)])
    row = int(table.ready_rows[0])
    table.inflight_requests[row] = 2
    table.replace([endpoint(1, ready=False)])
    assert table.ready_rows.size == 0
    assert table.rows_of(["10.0.0.1"]).size == 0
    table.replace([endpoint(1)])
    assert table.ready_rows.tolist() == [row]
    assert table.inflight_requests[row] == 2


def test_subset_entries_name_addresses_or_single_ports() -> None:
    table = EndpointTable()
    table.replace(
        [
            endpoint(1),
            endpoint(1, name="pod-1-rank-1", port=8001),
            endpoint(2),
            endpoint(3, address="fd00::3"),
        ]
    )
    both = {row_at(table, "10.0.0.1:8000"), row_at(table, "10.0.0.1:8001")}
    assert set(table.rows_of(["10.0.0.1"]).tolist()) == both
    assert table.rows_of(["10.0.0.1:8001"]).tolist() == [row_at(table, "10.0.0.1:8001")]
    v6 = row_at(table, "[fd00::3]:8000")
    for spelling in ("fd00::3", "[fd00::3]", "[fd00::3]:8000"):
        assert table.rows_of([spelling]).tolist() == [v6]
    assert table.rows_of(["10.0.0.2:9999", "", "nonsense", "10.0.0.7"]).size == 0
    assert table.rows_of(["10.0.0.2", "10.0.0.2:8000"]).size == 1


def test_metrics_too_old_become_unknown() -> None:
    table = EndpointTable()
    table.replace([endpoint(1), endpoint(2)])
    old, fresh = (row_at(table, f"10.0.0.{n}:8000") for n in (1, 2))
    for row, when in ((old, 10.0), (fresh, 11.5)):
        table.waiting[row] = table.running[row] = table.kv_usage[row] = 0
        table.scraped_at[row] = when
    table.expire(12.5)
    assert np.isnan([table.waiting[old], table.running[old], table.kv_usage[old]]).all()
    assert table.waiting[fresh] == 0


@given(st.lists(st.sets(st.integers(1, 60)), max_size=8))
def test_any_history_ends_with_exactly_the_last_set(history: list[set[int]]) -> None:
    table = EndpointTable()
    freed: list[int] = []
    table.on_free(freed.append)
    for numbers in history:
        table.replace([endpoint(n) for n in numbers])
        assert {table.hostports[row] for row in table.ready_rows} == {f"10.0.0.{n}:8000" for n in numbers}
        assert len(table) == len(numbers)
        assert sorted(table.occupied()) == sorted(table.ready_rows.tolist())
    assert int(sum(table.generation)) == len(freed)
