"""Metrics as a scraper reads them."""

from prometheus_client import CollectorRegistry, generate_latest

from endpoint_picker.observability.metrics import MAX_MODELS, MAX_SERIES, PickerMetrics, PoolFigures
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from ext_proc.body.usage import Usage
from ext_proc.processor import Ending


def finished(
    metrics: PickerMetrics,
    model: str = "m",
    outcome: Outcome = Outcome.PICKED,
    status: int = 200,
    priority: int = 0,
) -> None:
    record = Record(10.0)
    metrics.started()
    record.model, record.outcome, record.endpoint = model, outcome, "a:1"
    record.priority = priority
    metrics.decided(record, 0.00015)
    record.streaming, record.response_status, record.served_by = True, status, "b:1"
    record.first_byte_at = 10.05
    record.first_token_at, record.last_token_at = 10.1, 11.1
    record.usage = Usage(100, 11, 0)
    record.ended_at = 11.2
    record.ending = Ending.COMPLETED if outcome is Outcome.PICKED else Ending.REFUSED
    metrics.ended(record)


def value(metrics: PickerMetrics, name: str, /, **labels: str) -> float | None:
    registry = CollectorRegistry()
    metrics.register(registry)
    return registry.get_sample_value(f"llm_d_epp_{name}", labels)


M = {"model_name": "m", "target_model_name": "m", "fairness_id": "default-flow", "priority": "0"}


def test_a_streamed_request_is_counted_and_timed() -> None:
    metrics = PickerMetrics()
    finished(metrics)
    assert value(metrics, "request_total", **M) == 1
    assert value(metrics, "request_running", **M) == 0
    assert value(metrics, "extproc_streams_inflight") == 0
    assert value(metrics, "request_ttft_seconds_bucket", **M, streaming="true", le="0.2") == 1
    assert value(metrics, "request_ttft_seconds_bucket", **M, streaming="true", le="0.05") == 0
    assert value(metrics, "request_streaming_tpot_seconds_bucket", **M, le="0.125") == 1
    assert value(metrics, "request_input_tokens_sum", **M) == 100
    assert value(metrics, "scheduler_e2e_duration_seconds_bucket", le="0.0002") == 1
    assert value(metrics, "served_elsewhere_total") == 1
    assert value(metrics, "exchanges_total", ending="completed") == 1


def test_errors_by_code() -> None:
    metrics = PickerMetrics()
    finished(metrics, status=500)
    finished(metrics, outcome=Outcome.SATURATED)
    assert value(metrics, "request_error_total", **M, error_code="ModelServerError") == 1
    assert value(metrics, "request_error_total", **M, error_code="ResourceExhausted") == 1
    assert value(metrics, "decisions_total", outcome="rejected-saturated") == 1
    assert value(metrics, "request_running", **M) == 0


def test_a_stream_that_ends_before_a_decision_counts_no_request() -> None:
    metrics = PickerMetrics()
    metrics.started()
    record = Record(1.0)
    record.ending = Ending.DISCONNECTED
    metrics.ended(record)
    assert value(metrics, "exchanges_total", ending="disconnected") == 1
    assert value(metrics, "extproc_streams_inflight") == 0


def page(metrics: PickerMetrics) -> str:
    registry = CollectorRegistry()
    metrics.register(registry)
    return generate_latest(registry).decode()


def of(model: str, priority: int = 0) -> dict[str, str]:
    return {**M, "model_name": model, "target_model_name": model, "priority": str(priority)}


def test_invented_model_names_do_not_grow_the_page() -> None:
    metrics = PickerMetrics()
    for number in range(3 * MAX_MODELS):
        finished(metrics, model=f"m{number}", status=404)
    finished(metrics, model="x" * 10_000, status=404)
    assert value(metrics, "request_total", **of("other")) == 1
    assert len(page(metrics).splitlines()) < 8 * MAX_MODELS


def test_a_real_model_is_counted_by_its_name_after_any_number_of_invented_ones() -> None:
    metrics = PickerMetrics()
    finished(metrics, "served-before")
    for number in range(3 * MAX_MODELS):
        finished(metrics, model=f"m{number}", status=404)
    finished(metrics, "real")
    assert value(metrics, "request_total", **of("real")) == 1
    assert value(metrics, "request_duration_seconds_count", **of("real")) == 1
    assert value(metrics, "request_total", **of("served-before")) == 1
    assert 'model_name="m0"' not in page(metrics)


def test_a_model_that_gave_a_good_answer_keeps_its_series() -> None:
    metrics = PickerMetrics()
    for number in range(MAX_MODELS):
        finished(metrics, model=f"good{number}")
    finished(metrics, model="late")
    assert value(metrics, "request_total", **of("good0")) == 1
    assert value(metrics, "request_total", **of("late")) is None
    assert value(metrics, "request_total", **of("other")) == 1


def test_a_name_with_a_request_at_a_server_keeps_its_series() -> None:
    metrics = PickerMetrics()
    records = []
    for number in range(MAX_MODELS):
        metrics.started()
        record = Record(10.0)
        record.model, record.outcome = f"m{number}", Outcome.PICKED
        metrics.decided(record, 0.0)
        records.append(record)
    finished(metrics, model="late", status=404)
    assert value(metrics, "request_total", **of("other")) == 1
    assert value(metrics, "request_running", **of("m0")) == 1
    for record in records:
        record.ending, record.ended_at = Ending.DISCONNECTED, 11.0
        metrics.ended(record)
    finished(metrics, model="later", status=404)
    assert value(metrics, "request_total", **of("later")) == 1
    running = {family.name: family for family in metrics.collect()}["llm_d_epp_request_running"]
    assert all(sample.value == 0 for sample in running.samples)


def begun(metrics: PickerMetrics, model: str, priority: int = 0) -> Record:
    metrics.started()
    record = Record(10.0)
    record.model, record.priority, record.outcome = model, priority, Outcome.PICKED
    metrics.decided(record, 0.0)
    return record


def test_a_request_that_began_in_other_ends_there_although_its_model_has_a_series_by_then() -> None:
    metrics = PickerMetrics()
    busy = [begun(metrics, f"m{number}") for number in range(MAX_MODELS)]
    first = begun(metrics, "late")
    assert value(metrics, "request_running", **of("other")) == 1
    metrics.gap_counter(first)(0.01)
    for record in busy:
        record.ending = Ending.DISCONNECTED
        metrics.ended(record)
    second = begun(metrics, "late")
    for record in (first, second):
        record.ending, record.response_status = Ending.COMPLETED, 200
        metrics.ended(record)
    assert value(metrics, "request_running", **of("other")) == 0
    assert value(metrics, "request_running", **of("late")) == 0
    assert value(metrics, "request_total", **of("other")) == 1
    assert value(metrics, "request_total", **of("late")) == 1


def test_without_room_for_a_priority_a_known_model_is_counted_under_priority_zero() -> None:
    metrics = PickerMetrics()
    finished(metrics, "m")
    for priority in range(1, MAX_SERIES):
        finished(metrics, "m", priority=priority)
    finished(metrics, "m", priority=MAX_SERIES)
    assert value(metrics, "request_total", **of("m")) == 2
    finished(metrics, "x" * 10_000, priority=3)
    assert value(metrics, "request_total", **of("other")) == 1


def test_pairs_of_invented_names_and_priorities_make_room_as_well() -> None:
    metrics = PickerMetrics()
    for number in range(MAX_MODELS):
        for priority in range(1 + MAX_SERIES // MAX_MODELS):
            finished(metrics, model=f"m{number}", status=404, priority=priority)
    finished(metrics, "real", priority=7)
    assert value(metrics, "request_total", **of("real", 7)) == 1
    assert len(page(metrics).splitlines()) < 6 * MAX_SERIES


def test_pool_gauges_are_read_when_asked_for() -> None:
    metrics = PickerMetrics()
    pool = [PoolFigures(1)]
    metrics.read_pool("p", lambda: pool[0])
    pool[0] = PoolFigures(3, average_queue_size=1.5)
    assert value(metrics, "ready_endpoints", name="p") == 3
    assert value(metrics, "average_queue_size", name="p") == 1.5


def test_the_page_is_well_formed() -> None:
    metrics = PickerMetrics()
    finished(metrics)
    registry = CollectorRegistry()
    metrics.register(registry)
    page = generate_latest(registry).decode()
    assert "# TYPE llm_d_epp_request_duration_seconds histogram" in page
    assert 'le="+Inf"' in page


def test_a_request_ends_in_the_series_that_it_began_in() -> None:
    metrics = PickerMetrics()
    for number in range(MAX_MODELS):
        finished(metrics, f"m{number}")
    metrics.started()
    record = Record(10.0)
    record.model, record.priority, record.outcome = "unknown", 5, Outcome.PICKED
    metrics.decided(record, 0.0)
    for priority in range(1, 1 + MAX_SERIES - MAX_MODELS):
        metrics.started()
        other = Record(10.0)
        other.model, other.priority, other.outcome = "m0", 10 + priority, Outcome.BAD_REQUEST
        metrics.decided(other, 0.0)
        other.ending = Ending.REFUSED
        metrics.ended(other)
    record.ending, record.ended_at = Ending.DISCONNECTED, 11.0
    metrics.ended(record)
    families = {family.name: family for family in metrics.collect()}
    assert all(sample.value == 0 for sample in families["llm_d_epp_request_running"].samples)
