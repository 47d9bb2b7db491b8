"""Decisions of filters by load, prefix and length, and of the scorers by label and turn: tables by hand."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.decision import Reservation
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.filters.prefix_cache_affinity import (
    PrefixCacheAffinityFilter,
    PrefixCacheAffinityParams,
)
from endpoint_picker.scheduling.filters.utilization import UtilizationFilter, UtilizationFilterParams
from endpoint_picker.scheduling.plugin import Pool
from endpoint_picker.scheduling.scorers.context_length_aware import ContextLengthAware, ContextLengthParams
from endpoint_picker.scheduling.scorers.header_label_affinity import (
    HeaderLabelAffinityParams,
    HeaderLabelAffinityScorer,
)
from endpoint_picker.scheduling.scorers.no_hit_lru import NoHitLruParams, NoHitLruScorer

REQUEST = InferenceRequest(request_id="r")
NAN = np.nan
RANGE = "llm-d.ai/context-length-range"


def table_of(labels: list[dict[str, str]], **columns: list[float]) -> EndpointTable:
    table = EndpointTable()
    table.replace(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels=each) for n, each in enumerate(labels)
    )
    for name, values in columns.items():
        getattr(table, name)[table.ready_rows] = values
    return table


def matched(table: EndpointTable, lengths: list[float], blocks: int) -> Candidates:
    candidates = Candidates(table.ready_rows)
    candidates.prefix_matched = np.array(lengths, dtype=np.float64)
    candidates.prompt_blocks = blocks
    candidates.block_tokens = 64
    return candidates


@pytest.mark.parametrize(
    ("conditions", "fallback", "expected"),
    [
        pytest.param([("waiting-queue", 4)], False, [0, 1], id="queue with what was sent since the scrape"),
        pytest.param([("running-requests", 5)], False, [0, 1], id="batch; unknown is not met"),
        pytest.param([("kv-cache-utilization", 0.5)], False, [0, 1, 2, 3], id="known of none: cuts nothing"),
        pytest.param([("active-requests", 3)], False, [2, 3], id="in flight"),
        pytest.param([("waiting-queue", 4), ("active-requests", 4)], False, [1], id="all are to be met"),
        pytest.param([("active-requests", 0)], False, [], id="none meets it"),
        pytest.param([("active-requests", 0)], True, [0, 1, 2, 3], id="none meets it: all"),
    ],
)
def test_utilization_filter(conditions: list[tuple[str, float]], fallback: bool, expected: list[int]) -> None:
    table = table_of(
        [{}] * 4,
        waiting=[0, 3, 5, 4],
        unseen=[2, 1, 0, 1],
        running=[1, 2, NAN, 9],
        kv_usage=[NAN] * 4,
        inflight_requests=[5, 4, 3, 2],
    )
    params = {
        "conditions": [{"metric": metric, "maxValue": limit} for metric, limit in conditions],
        "fallbackOnEmpty": fallback,
    }
    narrow = UtilizationFilter(UtilizationFilterParams.model_validate(params))
    assert narrow.filter(REQUEST, Candidates(table.ready_rows), table).tolist() == expected


def test_a_utilization_filter_without_conditions_is_refused() -> None:
    with pytest.raises(ValidationError):
        UtilizationFilterParams.model_validate({"conditions": []})


@pytest.mark.parametrize(
    ("params", "lengths", "expected"),
    [
        pytest.param({}, [8, 10, 7], [0, 1], id="from the threshold on"),
        pytest.param({}, [7, 0, 7], [0, 1, 2], id="none is sticky"),
        pytest.param({}, [10, 8, 9], [0, 1, 2], id="all are sticky"),
        pytest.param({"affinityThreshold": 0}, [10, 0, 0], [0, 1, 2], id="off"),
        pytest.param({"explorationProbability": 1}, [10, 0, 0], [0, 1, 2], id="explores"),
        # 31,856 tokens at 15,928 a second are 2,000 ms; the best of the others has none.
        pytest.param({"maxTTFTPenaltyMs": 2000}, [10, 0, 0], [0], id="as far behind as it may be"),
        pytest.param({"maxTTFTPenaltyMs": 1999}, [10, 0, 0], [0, 1, 2], id="too far behind"),
        pytest.param({"maxTTFTPenaltyMs": 1999}, [10, 10, 0], [0, 1], id="the best of the sticky counts"),
        pytest.param({"maxTTFTPenaltyMs": 0}, [10, 0, 0], [0], id="no limit"),
        pytest.param(
            {"maxTTFTPenaltyMs": 2000, "peakPrefillThroughput": 15000}, [10, 0, 0], [0, 1, 2], id="slower"
        ),
    ],
)
def test_prefix_cache_affinity(params: dict[str, float], lengths: list[float], expected: list[int]) -> None:
    table = table_of([{}] * 3, inflight_tokens=[31856, 1000, 0])
    narrow = PrefixCacheAffinityFilter(PrefixCacheAffinityParams.model_validate(params))
    pool = Pool(clock=lambda: 0.0)
    pool.rng = np.random.default_rng(1)
    narrow.attach(pool)
    assert narrow.filter(REQUEST, matched(table, lengths, 10), table).tolist() == expected


def test_a_filter_by_prefix_runs_after_its_producer_and_the_scorers_see_what_it_left() -> None:
    config = build(
        """
plugins:
- {type: label-selector-filter, parameters: {matchLabels: {pool: a}}}
- {type: prefix-cache-affinity-filter}
- {type: prefix-cache-scorer}
""",
        Registry.installed(),
    )
    pool = Pool(clock=lambda: 0.0)
    pool.rng = rng = np.random.default_rng(1)
    pool.table.replace(
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels={"pool": "ab"[n % 2]}) for n in range(6)
    )
    for plugin in config.scheduling.plugins:
        plugin.attach(pool)
    request = InferenceRequest(request_id="r", model="m", prompt=b"p" * 2560)
    pool.index.record(pool.index.hashes("m", request.prompt), 4)
    candidates = Candidates(pool.table.ready_rows)
    config.scheduling.profiles[0].run(request, candidates, pool.table, rng)
    assert candidates.rows.tolist() == [4]
    assert candidates.prefix_matched.tolist() == [10]
    assert candidates.order.tolist() == [0]


LENGTHS = [
    {RANGE: "0-1000"},
    {RANGE: "1000-1000"},
    {RANGE: "2000-4000"},
    {RANGE: "0-500"},
    {},
    {RANGE: "short"},
    {RANGE: "9-1"},
]


def test_context_length_scores() -> None:
    table = table_of(LENGTHS)
    scorer = ContextLengthAware(ContextLengthParams())
    request = InferenceRequest(request_id="r", prompt=b"p" * 2000)  # 500 tokens
    scores = scorer.score(request, Candidates(table.ready_rows), table)
    # 0.3 + 0.7 * (0.7 / 1.1 + 0.3 * 0.5); distances 500, 1500; 0.3 + 0.7 * (0.7 / 1.05 + 0)
    assert scores.tolist() == pytest.approx([0.850455, 0.2, 0.12, 0.766667, 0.5, 0, 0], abs=1e-6)
    exact = InferenceRequest(request_id="r", prompt=b"p" * 4000)
    assert scorer.score(exact, Candidates(table.ready_rows), table)[1] == 1.0


def test_context_length_filter() -> None:
    table = table_of(LENGTHS)
    request = InferenceRequest(request_id="r", prompt=b"p" * 2000)
    candidates = Candidates(table.ready_rows)
    off = ContextLengthAware(ContextLengthParams())
    on = ContextLengthAware(ContextLengthParams(enable_filtering=True))
    assert off.filter(request, candidates, table).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert on.filter(request, candidates, table).tolist() == [0, 3, 4]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-zone": "b"}, [0, 1, 0]),
        ({"x-zone": "q"}, [0, 0, 0]),
        ({}, [0, 0, 0]),
        ({"x-zone": ""}, [0, 0, 0]),
    ],
)
def test_header_label_affinity(headers: dict[str, str], expected: list[float]) -> None:
    table = table_of([{"zone": "a"}, {"zone": "b"}, {}])
    scorer = HeaderLabelAffinityScorer(HeaderLabelAffinityParams(header_name="X-Zone", label_key="zone"))
    request = InferenceRequest(request_id="r", headers=headers)
    assert scorer.score(request, Candidates(table.ready_rows), table).tolist() == expected


def lru(size: int = 1024, *, sent: list[int]) -> tuple[NoHitLruScorer, EndpointTable]:
    table = table_of([{}] * 5)
    scorer = NoHitLruScorer(NoHitLruParams(lru_size=size))
    for row in sent:
        scorer.decided(REQUEST, matched(table, [0] * 5, 9), Reservation(row, table.generation[row], 0))
    return scorer, table


@pytest.mark.parametrize(
    ("size", "sent", "expected"),
    [
        pytest.param(9, [], [1, 0.75, 0.5, 0.25, 0], id="never used: in order"),
        pytest.param(9, [0, 2], [0.25, 1, 0, 0.75, 0.5], id="used ones last, the oldest first"),
        pytest.param(9, [0, 2, 0], [0, 1, 0.25, 0.75, 0.5], id="used again"),
        pytest.param(1, [0, 2], [1, 0.75, 0, 0.5, 0.25], id="the oldest is forgotten"),
    ],
)
def test_no_hit_lru(size: int, sent: list[int], expected: list[float]) -> None:
    scorer, table = lru(size, sent=sent)
    assert scorer.score(REQUEST, matched(table, [0] * 5, 9), table).tolist() == expected


def test_no_hit_lru_leaves_prompts_that_are_held_alone() -> None:
    scorer, table = lru(sent=[0])
    warm = matched(table, [0, 3, 0, 0, 0], 9)
    assert scorer.score(REQUEST, warm, table).tolist() == [0.5] * 5
    scorer.decided(REQUEST, warm, Reservation(3, table.generation[3], 0))
    assert scorer.score(REQUEST, matched(table, [0] * 5, 9), table).tolist() == [0, 1, 0.75, 0.5, 0.25]


def test_no_hit_lru_knows_a_new_server_in_an_old_row() -> None:
    scorer, table = lru(sent=[0])
    table.generation[0] += 1
    cold: Any = matched(table, [0] * 5, 9)
    assert scorer.score(REQUEST, cold, table)[0] == 1.0
