"""Saturation of the pool by the utilization detector."""

import numpy as np
import pytest
from pydantic import ValidationError

from endpoint_picker.datalayer.table import Endpoint, EndpointTable
from endpoint_picker.flowcontrol.utilization_detector import UtilizationDetector, UtilizationParams

NOW = 100.0
NAN = np.nan


@pytest.mark.parametrize(
    ("waiting", "unseen", "usage", "age", "expected"),
    [
        pytest.param([0, 0], [0, 0], [0, 0], [0, 0], 0.0, id="idle"),
        pytest.param([5, 0], [0, 0], [0.0, 0.0], [0, 0], 0.5, id="one queue full"),
        pytest.param([0, 0], [0, 0], [0.4, 0.8], [0, 0], 0.75, id="caches"),
        pytest.param([5, 1], [0, 0], [0.2, 0.8], [0, 0], 1.0, id="the worse of the two"),
        pytest.param([20, 20], [0, 0], [0, 0], [0, 0], 4.0, id="not capped"),
        pytest.param([0, 0], [5, 5], [0, 0], [0, 0], 1.0, id="a burst between two scrapes"),
        pytest.param([0, 0], [0, 0], [0, 0], [0, 0.3], 0.5, id="old metrics count as full"),
        pytest.param([0, NAN], [0, 0], [0, NAN], [0, 0], 0.5, id="missing metrics count as full"),
        pytest.param([NAN, NAN], [0, 0], [0.4, 0.4], [0, 0], 0.5, id="only one signal"),
    ],
)
def test_saturation(
    waiting: list[float], unseen: list[int], usage: list[float], age: list[float], expected: float
) -> None:
    table = EndpointTable()
    table.replace(Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000) for n in range(2))
    rows = table.ready_rows
    table.waiting[rows], table.unseen[rows], table.kv_usage[rows] = waiting, unseen, usage
    table.scraped_at[rows] = NOW - np.array(age)
    detector = UtilizationDetector(UtilizationParams())
    assert detector.saturation(rows, table, NOW) == pytest.approx(expected)


def test_no_endpoint_is_full() -> None:
    table = EndpointTable()
    assert UtilizationDetector(UtilizationParams()).saturation(table.ready_rows, table, NOW) == 1.0


def test_the_staleness_threshold_is_a_duration() -> None:
    assert (
        UtilizationParams.model_validate({"metricsStalenessThreshold": "1s500ms"}).metrics_staleness_threshold
        == 1.5
    )


@pytest.mark.parametrize(
    "params",
    [{"metricsStalenessThreshold": "soon"}, {"metricsStalenessThreshold": "0s"}, {"queueDepthThreshold": 0}],
)
def test_parameters_out_of_range_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        UtilizationParams.model_validate(params)
