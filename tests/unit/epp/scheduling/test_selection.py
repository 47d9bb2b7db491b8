"""Filters, pickers and the profile that joins them."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Floats, Rows
from endpoint_picker.decision import Refusal
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.filters.header_based_testing import HeaderBasedTestingFilter
from endpoint_picker.scheduling.filters.label_selector import LabelSelectorFilter
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.pickers.max_score import MaxScorePicker
from endpoint_picker.scheduling.pickers.params import PickerParams
from endpoint_picker.scheduling.pickers.random import RandomPicker
from endpoint_picker.scheduling.pickers.weighted_random import WeightedRandomPicker
from endpoint_picker.scheduling.plugin import NoParams
from endpoint_picker.scheduling.profile import Profile, WeightedScorer, clamped
from endpoint_picker.scheduling.selector import LabelSelectorParams

REQUEST = InferenceRequest(request_id="r")
ANY = Candidates(np.arange(5))
LABELS: list[dict[str, str]] = [{"role": "decode", "gpu": "a"}, {"role": "prefill"}, {}]


@pytest.fixture
def table() -> EndpointTable:
    table = EndpointTable()
    table.replace(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels=labels) for n, labels in enumerate(LABELS)
    )
    return table


def kept(table: EndpointTable, rows: Rows) -> list[str]:
    return [endpoint.name for row in rows.tolist() if (endpoint := table.endpoints[row]) is not None]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param({}, ["p0", "p1", "p2"], id="empty matches all"),
        pytest.param({"matchLabels": {"role": "decode"}}, ["p0"], id="label"),
        pytest.param(
            {"matchExpressions": [{"key": "role", "operator": "Exists"}]}, ["p0", "p1"], id="Exists"
        ),
        pytest.param(
            {"matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]}, ["p2"], id="DoesNotExist"
        ),
        pytest.param(
            {"matchExpressions": [{"key": "role", "operator": "In", "values": ["prefill", "x"]}]},
            ["p1"],
            id="In",
        ),
        pytest.param(
            {"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["decode"]}]},
            ["p1", "p2"],
            id="NotIn is met by an absent label",
        ),
        pytest.param(
            {"matchLabels": {"gpu": "a"}, "matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]},
            [],
            id="every part must match",
        ),
    ],
)
def test_label_selector(table: EndpointTable, selector: dict[str, Any], expected: list[str]) -> None:
    chosen = LabelSelectorFilter(LabelSelectorParams.model_validate(selector))
    assert kept(table, chosen.filter(REQUEST, Candidates(table.ready_rows), table)) == expected


def test_label_selector_follows_labels_that_change(table: EndpointTable) -> None:
    chosen = LabelSelectorFilter(LabelSelectorParams(match_labels={"role": "decode"}))
    assert kept(table, chosen.filter(REQUEST, Candidates(table.ready_rows), table)) == ["p0"]
    table.replace([Endpoint("p1", "default", "10.0.0.1", 8000, labels={"role": "decode"})])
    assert kept(table, chosen.filter(REQUEST, Candidates(table.ready_rows), table)) == ["p1"]


@pytest.mark.parametrize(
    "selector",
    [
        {"matchExpressions": [{"key": "role", "operator": "In"}]},
        {"matchExpressions": [{"key": "role", "operator": "Exists", "values": ["x"]}]},
        {"matchExpressions": [{"key": "role", "operator": "Near", "values": ["x"]}]},
    ],
)
def test_label_selectors_that_mean_nothing_are_refused(selector: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LabelSelectorParams.model_validate(selector)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(None, ["p0", "p1", "p2"], id="absent"),
        pytest.param("10.0.0.1", ["p1"], id="address"),
        pytest.param("10.0.0.2:8000 , 10.0.0.0:8000", ["p0", "p2"], id="list with ports"),
        pytest.param("10.0.0.1:9999", ["p0", "p1", "p2"], id="no such port"),
        pytest.param("10.0.0.1:9999, 10.0.0.2", ["p2"], id="one of two is there"),
    ],
)
def test_header_based_testing(table: EndpointTable, header: str | None, expected: list[str]) -> None:
    headers = {} if header is None else {"test-epp-endpoint-selection": header}
    request = InferenceRequest(request_id="r", headers=headers)
    chosen = HeaderBasedTestingFilter(NoParams())
    assert kept(table, chosen.filter(request, Candidates(table.ready_rows), table)) == expected


def test_max_score_orders_by_score_and_ties_at_random() -> None:
    picker = MaxScorePicker(PickerParams(max_num_of_endpoints=4))
    rng = np.random.default_rng(7)
    scores = np.array([1.0, 3.0, 0.1 + 0.2, 3.0, 0.3])
    orders = {tuple(picker.pick(ANY, scores, rng).tolist()) for _ in range(200)}
    # 0.1 + 0.2 and 0.3 are a tie, however floats see it.
    assert orders == {(a, b, 0, c) for a, b in ((1, 3), (3, 1)) for c in (2, 4)}


def test_random_picker_ignores_scores() -> None:
    picker = RandomPicker(PickerParams(max_num_of_endpoints=1))
    rng = np.random.default_rng(7)
    firsts = [int(picker.pick(ANY, np.array([0.0, 100.0]), rng)[0]) for _ in range(400)]
    assert 120 < sum(firsts) < 280


def test_weighted_random_picks_in_proportion_and_zero_last() -> None:
    picker = WeightedRandomPicker(PickerParams(max_num_of_endpoints=3))
    rng = np.random.default_rng(7)
    picks = [picker.pick(ANY, np.array([1.0, 3.0, 0.0]), rng).tolist() for _ in range(1000)]
    assert 650 < sum(1 for pick in picks if pick[0] == 1) < 850
    assert all(pick[2] == 2 for pick in picks)
    uniform = [int(picker.pick(ANY, np.zeros(2), rng)[0]) for _ in range(400)]
    assert 120 < sum(uniform) < 280


def wild(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
    return np.array([5.0, -1.0, np.nan])[: candidates.rows.size]


def by_row(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
    return candidates.rows / 10.0


def profile(**changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "name": "default",
        "filters": (),
        "producers": (),
        "scorers": (WeightedScorer("by-row", 2.0, by_row),),
        "pick": MaxScorePicker(PickerParams()).pick,
    }
    return Profile(**{**fields, **changes})


def test_the_profile_weighs_and_adds(table: EndpointTable) -> None:
    scorers = (WeightedScorer("by-row", 2.0, by_row), WeightedScorer("wild", 3.0, clamped(wild)))
    joined = profile(scorers=scorers)
    rng = np.random.default_rng(1)
    rows = table.ready_rows
    candidates = Candidates(rows)
    assert joined.run(REQUEST, candidates, table, rng) is None
    assert candidates.order.tolist() == [0, 2, 1]
    assert [scores.tolist() for scores in candidates.scores] == [
        pytest.approx([0.1 * row for row in rows]),
        [1.0, 0.0, 0.0],
    ]


def nothing(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
    return candidates.rows[:0]


def never(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Any:
    raise AssertionError("ran on no rows")


def test_filters_run_in_order_and_an_empty_answer_ends_the_run(table: EndpointTable) -> None:
    chain = profile(filters=(nothing, never), producers=(never,))
    candidates = Candidates(table.ready_rows)
    assert chain.run(REQUEST, candidates, table, np.random.default_rng(1)) is None
    assert candidates.order.size == 0


def test_producers_run_after_the_filters_and_before_the_scorers(table: EndpointTable) -> None:
    def last(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        return candidates.rows[2:]

    def match(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> None:
        candidates.prefix_matched = np.array([4.0])

    def score(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        return candidates.prefix_matched / 10

    staged = profile(filters=(last,), producers=(match,), scorers=(WeightedScorer("s", 1.0, score),))
    candidates = Candidates(table.ready_rows)
    staged.run(REQUEST, candidates, table, np.random.default_rng(1))
    assert candidates.order.tolist() == [0]
    assert [scores.tolist() for scores in candidates.scores] == [[0.4]]


def test_a_hold_ends_the_run(table: EndpointTable) -> None:
    hold = Hold(deadline=1.0, refusal=Refusal(Outcome.OVERLOADED, "full"), forget=lambda _hold: None)
    put_off = profile(producers=(lambda *_given: hold,), scorers=(WeightedScorer("never", 1.0, never),))
    candidates = Candidates(table.ready_rows)
    assert put_off.run(REQUEST, candidates, table, np.random.default_rng(1)) is hold
    assert candidates.order.size == 0
