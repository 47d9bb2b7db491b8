"""The concurrency detector, and both detectors as filters."""

import json

import numpy as np
import pytest

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.flowcontrol.concurrency_detector import ConcurrencyDetector, ConcurrencyParams
from endpoint_picker.flowcontrol.utilization_detector import UtilizationDetector, UtilizationParams
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import build_router
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Pool

NAN = np.nan
REQUEST = InferenceRequest(request_id="r")


def pool_of(count: int, now: float = 100.0) -> Pool:
    pool = Pool(clock=lambda: now)
    pool.table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(count))
    return pool


@pytest.mark.parametrize(
    ("parameters", "requests", "tokens", "expected"),
    [
        pytest.param({}, [0, 0], [0, 0], 0.0, id="idle"),
        # 150 of 2 * 100.
        pytest.param({}, [100, 50], [0, 0], 0.75, id="requests"),
        # 12 of 2 * 4: not capped.
        pytest.param({"maxConcurrency": 4}, [8, 4], [0, 0], 1.5, id="limit"),
        # 500,000 of 2 * 1,000,000; the requests do not count.
        pytest.param({"concurrencyMode": "tokens"}, [900, 0], [0, 500_000], 0.25, id="tokens"),
        # max(0.5, 0.1) and max(0.2, 0.9), on average 0.7.
        pytest.param(
            {"concurrencyMode": "hybrid", "maxConcurrency": 10, "maxTokenConcurrency": 1000},
            [5, 2],
            [100, 900],
            0.7,
            id="hybrid",
        ),
    ],
)
def test_saturation_by_what_is_in_flight(
    parameters: dict[str, object], requests: list[int], tokens: list[int], expected: float
) -> None:
    table = pool_of(2).table
    table.inflight_requests[table.ready_rows] = requests
    table.inflight_tokens[table.ready_rows] = tokens
    detector = ConcurrencyDetector(ConcurrencyParams.model_validate(parameters))
    assert detector.saturation(table.ready_rows, table, 0.0) == pytest.approx(expected)
    assert detector.saturation(table.ready_rows[:0], table, 0.0) == 1.0


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        # Below int(3 * 1) = 3.
        pytest.param({"maxConcurrency": 3}, [0, 1], id="requests"),
        # Below int(3 * 1.5) = 4.
        pytest.param({"maxConcurrency": 3, "headroom": 0.5}, [0, 1, 2], id="headroom, rounded down"),
        pytest.param({"maxConcurrency": 1}, [0], id="one"),
        pytest.param({"concurrencyMode": "tokens", "maxTokenConcurrency": 50}, [1, 2, 3], id="tokens"),
        pytest.param({"concurrencyMode": "tokens", "maxTokenConcurrency": 1}, [], id="none is left"),
        pytest.param(
            {"concurrencyMode": "hybrid", "maxConcurrency": 4, "maxTokenConcurrency": 50}, [1, 2], id="both"
        ),
    ],
)
def test_the_concurrency_filter(parameters: dict[str, object], expected: list[int]) -> None:
    table = pool_of(4).table
    table.inflight_requests[table.ready_rows] = [0, 2, 3, 4]
    table.inflight_tokens[table.ready_rows] = [60, 10, 20, 30]
    detector = ConcurrencyDetector(ConcurrencyParams.model_validate(parameters))
    assert detector.filter(REQUEST, Candidates(table.ready_rows), table).tolist() == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        # Queues 0, 4, 5, 0; usages 0.1, 0.5, 0.1, 0.8; ages 0, 0.1, 0, 0.
        pytest.param({}, [0, 1], id="below both limits"),
        pytest.param({"headroom": 0.5}, [0, 1, 2, 3], id="headroom"),
        pytest.param({"metricsStalenessThreshold": "50ms"}, [0], id="old metrics do not pass"),
        pytest.param({"kvCacheUtilThreshold": 0.05}, [0, 1, 2, 3], id="none is left: all stay"),
        pytest.param({"queueDepthThreshold": 6}, [0, 1, 2], id="another limit"),
    ],
)
def test_the_utilization_filter_of_the_detector(parameters: dict[str, object], expected: list[int]) -> None:
    pool = pool_of(4)
    table = pool.table
    table.waiting[table.ready_rows] = [0, 4, 5, NAN]
    table.kv_usage[table.ready_rows] = [0.1, 0.5, 0.1, 0.8]
    table.scraped_at[table.ready_rows] = [100.0, 99.9, 100.0, 100.0]
    detector = UtilizationDetector(UtilizationParams.model_validate(parameters))
    detector.attach(pool)
    assert detector.filter(REQUEST, Candidates(table.ready_rows), table).tolist() == expected


def test_a_configuration_sheds_by_concurrency() -> None:
    config = """
plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 2}}, {type: queue-scorer}]
schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"""
    router = build_router(
        config_text=config,
        priorities_text='{"objectives": {"batch": {"priority": -1}}}',
        clock=lambda: 0.0,
        rng=np.random.default_rng(1),
    )
    assert not router.config_error
    router.replace_endpoints([Endpoint("p", "default", "10.0.0.1", 8000)])
    batch = InferenceRequest(request_id="r", objective="batch")
    answers = [router.decide(batch, None, lambda _late: None) for _ in range(3)]
    assert [str(getattr(each, "endpoint", "refused")) for each in answers] == [
        "10.0.0.1:8000",
        "10.0.0.1:8000",
        "refused",
    ]


def test_the_effective_configuration_of_both_is_accepted_again() -> None:
    text = (
        "plugins: [{type: concurrency-detector, parameters: {headroom: 0.5}}, {type: utilization-detector}]"
    )
    effective = build(text, Registry.installed()).effective
    assert build(json.dumps(effective), Registry.installed()).effective == effective
