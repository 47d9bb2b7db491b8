"""What every plugin keeps to, found as a configuration finds it: through its entry point."""

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Admitter, Filter, Picker, Plugin, Pool, Scorer, Screener

REGISTRY = Registry.installed()
CLASSES = {name: REGISTRY.find(name, "") for name in REGISTRY.types}
#: Parameters of the types that cannot do without.
REQUIRED: dict[str, dict[str, Any]] = {
    "by-label": {"label": "n", "validValues": ["1"]},
    "disaggregatedset-rollout-screener": {"revisionGating": {"revisionLabelKey": "n"}},
    "endpoint-attribute-filter": {
        "attribute": "cost",
        "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 2}},
    },
    "endpoint-attribute-scorer": {
        "attributeKey": "cost",
        "algorithm": {"type": "linear_lower_is_better"},
    },
    "session-id-producer": {"headerName": "n"},
    "priority-holdback-policy": {"minCeiling": 0.5},
    "header-label-affinity-scorer": {"headerName": "N", "labelKey": "n"},
    "request-attribute-reporter": {"attributes": [{"key": {"name": "n"}, "expression": "1"}]},
    "utilization-filter": {"conditions": [{"metric": "waiting-queue", "maxValue": 5}]},
}


def instance(name: str) -> Any:
    kind = CLASSES[name]
    made = kind(kind.params_type.model_validate(REQUIRED.get(name, {})))
    pool = Pool(clock=lambda: 0.0)
    pool.rng = np.random.default_rng(1)
    made.attach(pool)
    return made


INSTANCES: dict[str, Any] = {name: instance(name) for name in CLASSES}


def named(kind: Any) -> list[str]:
    return [name for name, instance in INSTANCES.items() if isinstance(instance, kind)]


RANGE = "llm-d.ai/context-length-range"
RANGES = ["0-4000", "2000-2000", "9-1", "many", "5000-99999999999"]
SIGNAL = st.one_of(st.just(np.nan), st.floats(0, 1e9), st.sampled_from([0.0, 1.0, 5.0]))
FRACTION = st.one_of(st.just(np.nan), st.floats(0, 1))


@st.composite
def situations(draw: st.DrawFn) -> tuple[EndpointTable, Candidates]:
    count = draw(st.integers(1, 20))
    table = EndpointTable()
    table.replace(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels={"n": str(n), RANGE: RANGES[n % 5]})
        for n in range(count)
    )
    rows = table.ready_rows
    table.waiting[rows] = draw(st.lists(SIGNAL, min_size=count, max_size=count))
    table.running[rows] = draw(st.lists(SIGNAL, min_size=count, max_size=count))
    table.kv_usage[rows] = draw(st.lists(FRACTION, min_size=count, max_size=count))
    flights = draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    table.inflight_requests[rows] = flights
    table.unseen[rows] = [draw(st.integers(0, flight)) for flight in flights]
    table.unseen_work[:] = table.unseen
    table.inflight_tokens[rows] = np.array(flights) * 1000
    names = st.frozensets(st.sampled_from("mnopq"), max_size=5)
    for row in rows.tolist():
        shown = st.builds(AdapterReading, names, names, st.integers(0, 3))
        table.attributes.write(row, ("core-metrics-extractor", "cost"), draw(SIGNAL), at=0.0)
        table.adapters.report(row, draw(st.one_of(st.none(), shown)), at=draw(st.floats(-100, 100)))
    candidates = Candidates(rows)
    candidates.peer = draw(st.integers(-1, count - 1))
    candidates.prompt_blocks = draw(st.integers(0, 50))
    candidates.block_tokens = 64
    lengths = [draw(st.integers(0, candidates.prompt_blocks)) for _ in range(count)]
    candidates.prefix_matched = np.array(lengths, dtype=np.float64)
    return table, candidates


REQUEST = InferenceRequest(
    request_id="r",
    model="m",
    prompt=b"p" * 8000,
    headers={
        "x-session-token": base64.b64encode(b"default/p1").decode(),
        "test-epp-endpoint-selection": "10.0.0.1, 10.0.0.3:8000",
        "n": "2",
    },
)


def candidates_of(count: int) -> Candidates:
    return Candidates(np.arange(count))


def test_the_types_of_the_default_configuration_are_installed() -> None:
    assert {"queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer", "max-score-picker"} <= set(
        CLASSES
    )


@pytest.mark.parametrize("name", CLASSES)
def test_each_plugin_is_what_its_entry_point_says(name: str) -> None:
    kind = CLASSES[name]
    assert issubclass(kind, Plugin)
    assert kind.type_name == name
    assert kind.__doc__
    assert not hasattr(INSTANCES[name], "__dict__")
    with pytest.raises(ValidationError):
        kind.params_type.model_validate({"noSuchKey": 1})


@pytest.mark.parametrize("name", named(Scorer))
@settings(deadline=None, max_examples=60)
@given(situation=situations())
def test_scores_are_one_a_row_within_zero_and_one_and_change_nothing(
    name: str, situation: tuple[EndpointTable, Candidates]
) -> None:
    table, candidates = situation
    before = [
        column.copy() for column in (table.waiting, table.kv_usage, table.unseen, candidates.prefix_matched)
    ]
    rows = table.ready_rows.copy()
    scores = INSTANCES[name].score(REQUEST, candidates, table)
    assert scores.dtype == np.float64
    assert scores.shape == rows.shape
    assert ((scores >= 0) & (scores <= 1)).all()
    scores *= 2  # the caller may change what it was given
    after = (table.waiting, table.kv_usage, table.unseen, candidates.prefix_matched)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(rows, table.ready_rows)


@pytest.mark.parametrize("name", named(Filter))
@given(situation=situations())
@settings(deadline=None, max_examples=40)
def test_a_filter_returns_some_of_the_rows_in_their_order(
    name: str, situation: tuple[EndpointTable, Candidates]
) -> None:
    table, candidates = situation
    kept = INSTANCES[name].filter(REQUEST, candidates, table).tolist()
    assert kept == [row for row in table.ready_rows.tolist() if row in set(kept)]


@pytest.mark.parametrize("name", named(Screener))
@given(situation=situations())
@settings(deadline=None, max_examples=40)
def test_a_screener_returns_some_of_the_rows_in_their_order(
    name: str, situation: tuple[EndpointTable, Candidates]
) -> None:
    table, candidates = situation
    kept = INSTANCES[name].screen(REQUEST, candidates.rows, table).tolist()
    assert kept == [row for row in table.ready_rows.tolist() if row in set(kept)]


@pytest.mark.parametrize("name", named(Admitter))
@given(situation=situations())
@settings(deadline=None, max_examples=40)
def test_an_admitter_refuses_no_request_of_priority_zero(
    name: str, situation: tuple[EndpointTable, Candidates]
) -> None:
    table, candidates = situation
    assert INSTANCES[name].refusal(REQUEST, candidates.rows, table, 0.0) is None


@pytest.mark.parametrize("name", named(Picker))
@given(st.lists(st.floats(0, 7), min_size=1, max_size=30), st.integers(-1, 40), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_a_picker_names_different_positions_as_many_as_asked_for(
    name: str, scores: list[float], count: int, seed: int
) -> None:
    kind = CLASSES[name]
    picker: Any = kind(kind.params_type.model_validate({"maxNumOfEndpoints": count}))
    positions = picker.pick(
        candidates_of(len(scores)), np.array(scores), np.random.default_rng(seed)
    ).tolist()
    assert len(positions) == min(max(1, count), len(scores))
    assert len(set(positions)) == len(positions)
    assert set(positions) <= set(range(len(scores)))


@pytest.mark.parametrize("name", named(Picker))
def test_three_endpoints_are_named_unless_told_otherwise(name: str) -> None:
    assert INSTANCES[name].pick(candidates_of(9), np.ones(9), np.random.default_rng(1)).size == 3
