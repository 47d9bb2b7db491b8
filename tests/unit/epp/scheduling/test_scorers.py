"""The formulas of the scorers, case by case."""

import numpy as np
import pytest

from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import NoParams
from endpoint_picker.scheduling.scorers.active_request import ActiveRequestParams, ActiveRequestScorer
from endpoint_picker.scheduling.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from endpoint_picker.scheduling.scorers.load_aware import LoadAwareParams, LoadAwareScorer
from endpoint_picker.scheduling.scorers.prefix_cache import PrefixCacheParams, PrefixCacheScorer
from endpoint_picker.scheduling.scorers.queue import QueueScorer
from endpoint_picker.scheduling.scorers.running_requests import RunningRequestsScorer
from endpoint_picker.scheduling.scorers.token_load import TokenLoadParams, TokenLoadScorer

REQUEST = InferenceRequest(request_id="r")
NAN = np.nan


def table_with(count: int, **columns: list[float]) -> EndpointTable:
    table = EndpointTable()
    table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(count))
    for name, values in columns.items():
        getattr(table, name)[table.ready_rows] = values
    table.unseen_work[:] = table.unseen
    return table


def matched(table: EndpointTable, lengths: list[float], blocks: int) -> Candidates:
    candidates = Candidates(table.ready_rows)
    candidates.prefix_matched = np.array(lengths, dtype=np.float64)
    candidates.prompt_blocks = blocks
    candidates.block_tokens = 64
    return candidates


@pytest.mark.parametrize(
    ("waiting", "unseen", "inflight", "expected"),
    [
        pytest.param([0, 5, 10], [0, 0, 0], [0, 0, 0], [1, 0.5, 0], id="linear between shortest and longest"),
        pytest.param([4, 4], [0, 0], [9, 0], [1, 1], id="equal: all 1"),
        pytest.param([0, 0], [2, 0], [2, 0], [0, 1], id="what was sent since the scrape counts"),
        pytest.param([0, NAN], [0, 0], [0, 0], [1, 0], id="unknown is never idle"),
        pytest.param(
            [9, NAN, 3], [0, 0, 0], [0, 0, 0], [0, 0, 1], id="unknown is no better than the longest"
        ),
        pytest.param([NAN, NAN], [0, 0], [3, 0], [0, 1], id="nothing known: requests in flight"),
        pytest.param([NAN], [0], [3], [1], id="alone and unknown"),
    ],
)
def test_queue(
    waiting: list[float], unseen: list[float], inflight: list[float], expected: list[float]
) -> None:
    table = table_with(len(waiting), waiting=waiting, unseen=unseen, inflight_requests=inflight)
    assert QueueScorer(NoParams()).score(REQUEST, Candidates(table.ready_rows), table).tolist() == expected


def test_running_requests() -> None:
    table = table_with(3, running=[0, 3, 6], unseen=[0, 0, 0], waiting=[9, 9, 0])
    assert RunningRequestsScorer(NoParams()).score(REQUEST, Candidates(table.ready_rows), table).tolist() == [
        1,
        0.5,
        0,
    ]


def test_kv_cache_utilization() -> None:
    table = table_with(3, kv_usage=[0.25, 1.0, NAN])
    assert KvCacheUtilizationScorer(NoParams()).score(
        REQUEST, Candidates(table.ready_rows), table
    ).tolist() == [
        0.75,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param({}, [0.0, 0.5, 1.0], id="part of the prompt"),
        pytest.param(
            {"matchLengthWeight": 1.0, "matchLengthScaleTokens": 1280}, [0.0, 0.25, 1.0], id="length"
        ),
        pytest.param({"matchLengthWeight": 0.5, "matchLengthScaleTokens": 640}, [0.0, 0.75, 1.0], id="both"),
    ],
)
def test_prefix_cache(params: dict[str, float], expected: list[float]) -> None:
    table = table_with(3)
    candidates = matched(table, [0, 10, 20], 20)
    scorer = PrefixCacheScorer(PrefixCacheParams.model_validate(params))
    assert scorer.score(REQUEST, candidates, table).tolist() == pytest.approx(expected)


def test_a_prompt_without_blocks_has_no_prefix() -> None:
    table = table_with(2)
    scorer = PrefixCacheScorer(PrefixCacheParams())
    assert scorer.score(REQUEST, Candidates(table.ready_rows), table).tolist() == [0, 0]


def test_load_aware() -> None:
    table = table_with(4, waiting=[0, 64, 500, NAN])
    assert LoadAwareScorer(LoadAwareParams()).score(
        REQUEST, Candidates(table.ready_rows), table
    ).tolist() == [
        0.5,
        0.25,
        0,
        0,
    ]


def test_active_requests() -> None:
    table = table_with(3, inflight_requests=[1, 2, 4])
    params = ActiveRequestParams(idle_threshold=1, max_busy_score=0.5)
    assert ActiveRequestScorer(params).score(REQUEST, Candidates(table.ready_rows), table).tolist() == [
        1,
        0.25,
        0,
    ]


def test_token_load_counts_this_requests_uncached_tokens() -> None:
    table = table_with(2, inflight_tokens=[0, 500])
    candidates = matched(table, [0, 10], 10)
    scorer = TokenLoadScorer(TokenLoadParams(queue_threshold_tokens=1000))
    assert scorer.score(REQUEST, candidates, table).tolist() == pytest.approx([0.36, 0.5])
