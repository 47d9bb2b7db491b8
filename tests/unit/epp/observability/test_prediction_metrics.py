"""Metrics of prediction: what a few requests leave on the page, under new and documented names."""

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from endpoint_picker.latency.desk import Desk
from endpoint_picker.latency.objectives import Objectives
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.observability.prediction_metrics import add_prediction_metrics
from endpoint_picker.scheduling.plugin import Pool
from latency_contract.schema import Target

NAN = math.nan


def page(desk: Desk) -> list[str]:
    metrics, registry = PickerMetrics(), CollectorRegistry()
    add_prediction_metrics(metrics, desk)
    metrics.register(registry)
    return generate_latest(registry).decode().splitlines()


@pytest.fixture
def desk() -> Desk:
    """A desk after two streamed requests: TTFT 0.3 and 1.5 s, predicted 0.2 and 1 s, objective 1 s."""
    made = Pool(clock=lambda: 0.0).desk
    for ttft, predicted in ((0.3, 0.2), (1.5, 1.0)):
        made.figures.ended(
            "m", Objectives(1.0, 0.0), (ttft, 0.02, 3.0), (predicted, 0.03, NAN), 0.001, streaming=True
        )
        made.accuracy.judge(Target.TTFT, 0, ttft, predicted, 2 * predicted - 0.6)
    made.counts[Reason.PREDICTED] = 2
    return made


def test_the_documented_names_are_there(desk: Desk) -> None:
    lines = page(desk)
    for line in (
        'inference_objective_request_ttft_seconds_count{model_name="m",target_model_name="m"} 2.0',
        'inference_objective_request_predicted_ttft_seconds_sum{model_name="m",target_model_name="m"} 1.2',
        'inference_objective_request_tpot_seconds_count{model_name="m",target_model_name="m"} 2.0',
        'inference_objective_request_predicted_tpot_seconds_count{model_name="m",target_model_name="m"} 2.0',
        'inference_objective_request_ttft_slo_violation_total{model_name="m",target_model_name="m"} 1.0',
        'llm_d_epp_request_slo_violation_total{model_name="m",target_model_name="m",type="ttft"} 1.0',
        'llm_d_epp_inference_request_metric{model_name="m",target_model_name="m",type="ttft"} 1.5',
    ):
        assert line in lines


def test_errors_are_signed_and_the_bound_has_its_coverage(desk: Desk) -> None:
    # Errors 0.5 and 0.5; bounds -0.2 and 1.4: neither request is within it.
    lines = page(desk)
    labels = 'regime="idle-short",type="ttft"'
    series = [line for line in lines if "prediction_relative_error_bucket" in line and labels in line]
    series = series or [line for line in lines if "prediction_relative_error_bucket" in line]
    counts = {line.split('le="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in series}
    assert counts["0.3"] == 0.0
    assert counts["1.0"] == 2.0
    assert any("prediction_judged_total" in line and line.endswith(" 2.0") for line in lines)
    assert any("prediction_within_bound_total" in line and line.endswith(" 0.0") for line in lines)
    assert 'llm_d_epp_prediction_requests_total{reason="predicted"} 2.0' in lines


def test_without_streaming_the_time_to_the_end_stands_for_ttft() -> None:
    made = Pool(clock=lambda: 0.0).desk
    made.figures.ended("m", Objectives(1.0, 0.01), (0.1, 0.02, 3.0), (NAN, NAN, 2.5), 0.001, streaming=False)
    lines = page(made)
    labels = '{model_name="m",target_model_name="m"}'
    assert f"inference_objective_request_ttft_seconds_sum{labels} 3.0" in lines
    assert f"inference_objective_request_predicted_ttft_seconds_sum{labels} 2.5" in lines
    assert not any(
        "inference_objective_request_tpot_seconds_count" in line and "1.0" in line for line in lines
    )
