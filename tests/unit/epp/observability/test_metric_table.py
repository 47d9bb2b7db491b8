"""The table of metrics: its page, and that the page of a picker has what the table says under both names."""

import runpy
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from endpoint_picker.observability.flow_metrics import FlowMetrics
from endpoint_picker.observability.kv_gauges import add_kv_metrics
from endpoint_picker.observability.metric_table import FAMILIES, Kind
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.observability.pool_gauges import ScrapeCounts, add_pool_gauges, pool_figures
from endpoint_picker.observability.prediction_metrics import add_prediction_metrics
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.routing import build_router
from ext_proc.body.usage import Usage
from ext_proc.processor import Ending

ROOT = Path(__file__).resolve().parents[4]


def test_the_page_in_docs_is_written_from_the_table() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "metrics_page.py"))
    assert (ROOT / "docs" / "metrics.md").read_text() == generator["text"](), "make metrics-page writes it"


def served(metrics: PickerMetrics, model: str, priority: int) -> None:
    record = Record(10.0)
    metrics.started()
    record.model, record.priority, record.outcome, record.endpoint = model, priority, Outcome.PICKED, "a:1"
    record.decided_at = 10.001
    metrics.decided(record, 0.00015)
    record.response_status, record.ending = 200, Ending.COMPLETED
    record.first_byte_at = record.first_token_at = 10.5
    record.usage, record.ended_at = Usage(100, 10, 0), 11.0
    metrics.ended(record)


def page_of(metrics: PickerMetrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the samples as Prometheus parses them: name, labels, value."""
    registry = CollectorRegistry()
    metrics.register(registry)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            key = tuple(sorted(sample.labels.items()))
            assert key not in series, f"{sample.name} has {key} twice"
            series[key] = sample.value
    return found


@pytest.fixture
def metrics() -> PickerMetrics:
    """The metrics of a picker that served requests of one model at two priorities."""
    router, made = build_router(), PickerMetrics()
    FlowMetrics(made, "p", lambda: router.flow)
    made.read_pool("p", lambda: pool_figures(router.table))
    add_pool_gauges(made, "p", router.scheduler, lambda: router.offered, ScrapeCounts(lambda: 1, lambda: 2))
    add_kv_metrics(made, router.pool, lambda: None, 8)
    add_prediction_metrics(made, router.pool.desk)
    served(made, "m", 0)
    served(made, "m", 10)
    return made


def test_every_family_of_the_table_is_collected(metrics: PickerMetrics) -> None:
    metrics.read("held_body_bytes", lambda: 0)
    metrics.read("info", lambda: 1, ("", "0.1.0"))
    shown = {metric.name for metric in metrics.collect()}
    for family in FAMILIES.values():
        name = family.full_name.removesuffix("_total") if family.kind is Kind.COUNTER else family.full_name
        assert name in shown
        if family.twin is not None:
            assert family.twin.name.removesuffix("_total") in shown


def test_a_deprecated_name_has_the_sum_over_the_labels_that_it_lacks(metrics: PickerMetrics) -> None:
    page = page_of(metrics)
    assert len(page["llm_d_epp_request_total"]) == 2
    old = {("model_name", "m"), ("target_model_name", "m")}
    totals = page["inference_objective_request_total"]
    assert {key: value for key, value in totals.items() if ("priority", "10") in key} == {
        tuple(sorted({*old, ("priority", "10")})): 1.0
    }
    durations = page["inference_objective_request_duration_seconds_count"]
    assert durations == {tuple(sorted(old)): 2.0}
    buckets = page["inference_objective_request_duration_seconds_bucket"]
    assert buckets[tuple(sorted({*old, ("le", "0.8")}))] == 0.0
    assert buckets[tuple(sorted({*old, ("le", "1.0")}))] == 2.0
    assert page["inference_objective_running_requests"] == {(("model_name", "m"),): 0.0}
    assert page["inference_pool_ready_pods"] == {(("name", "p"),): 0.0}
    poll_errors = page["llm_d_inference_scheduler_datalayer_poll_errors_total"]
    assert poll_errors == {(("source_type", "metrics-data-source"),): 2.0}


def test_normalised_time_is_the_duration_over_the_output_tokens(metrics: PickerMetrics) -> None:
    page = page_of(metrics)
    (total,) = page["inference_objective_normalized_time_per_output_token_seconds_sum"].values()
    assert total == pytest.approx(0.2)


def test_deprecated_names_can_be_left_out(metrics: PickerMetrics) -> None:
    metrics.deprecated = False
    assert all(name.startswith("llm_d_epp_") for name in page_of(metrics))
