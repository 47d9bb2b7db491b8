"""Metrics of latency prediction, read from the pool's desk on every collection. They change nothing."""

from collections.abc import Callable, Iterator

from endpoint_picker.latency.accuracy import Spread
from endpoint_picker.latency.desk import Desk
from endpoint_picker.latency.figures import ModelFigures
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.observability.metrics import MAX_NAME, OTHER, PickerMetrics
from endpoint_picker.observability.series import Labels, Observed
from latency_contract.states import State


def add_prediction_metrics(metrics: PickerMetrics, desk: Desk) -> None:
    """Add the families. They are empty until a configuration predicts."""

    def models() -> Iterator[tuple[Labels, ModelFigures]]:
        for model, figures in desk.figures.models.items():
            name = model if len(model) <= MAX_NAME else OTHER
            yield (name, name), figures

    def spreads(of: Callable[[ModelFigures], Spread]) -> Callable[[], Iterator[Observed]]:
        def read() -> Iterator[Observed]:
            for labels, figures in models():
                spread = of(figures)
                yield labels, spread.counts, spread.total

        return read

    for name, of in (
        ("request_observed_ttft_seconds", lambda each: each.ttft),
        ("request_predicted_ttft_seconds", lambda each: each.predicted_ttft),
        ("request_observed_tpot_seconds", lambda each: each.tpot),
        ("request_predicted_tpot_seconds", lambda each: each.predicted_tpot),
        ("request_ttft_prediction_duration_seconds", lambda each: each.took),
        ("request_tpot_prediction_duration_seconds", lambda each: each.took),
    ):
        metrics.read_histogram(name, spreads(of))
    metrics.read_each(
        "request_ttft_slo_violation_total",
        lambda: ((labels, each.missed_ttft) for labels, each in models()),
    )
    metrics.read_each(
        "request_slo_violation_total",
        lambda: (
            ((*labels, kind), count)
            for labels, each in models()
            for kind, count in (("ttft", each.missed_ttft), ("tpot", each.missed_tpot))
        ),
    )
    metrics.read_each(
        "inference_request_metric",
        lambda: (((*labels, kind), value) for labels, each in models() for kind, value in each.last.items()),
    )
    regimes = desk.accuracy.regimes
    metrics.read_histogram(
        "prediction_relative_error",
        lambda: ((key, each.errors.counts, each.errors.total) for key, each in regimes.items()),
    )
    metrics.read_each(
        "prediction_judged_total", lambda: ((key, each.judged) for key, each in regimes.items())
    )
    metrics.read_each(
        "prediction_within_bound_total", lambda: ((key, each.within) for key, each in regimes.items())
    )
    metrics.read_each(
        "prediction_requests_total",
        lambda: (
            ((str(reason) or "predicted",), count) for reason, count in desk.counts.items() if _shown(desk)
        ),
    )
    metrics.read("prediction_calls_total", lambda: desk.calls)
    metrics.read_each(
        "prediction_state",
        lambda: (((state.name.lower(),), float(state is desk.state)) for state in State if _shown(desk)),
    )
    metrics.read("prediction_out", lambda: desk.proof.is_out)
    metrics.read_each("prediction_gain", lambda: _gains(desk))
    metrics.read_each("prediction_gain_requests", lambda: _arms(desk))
    samples = desk.samples
    metrics.read_each(
        "prediction_samples_total",
        lambda: (
            ((fate,), count)
            for fate, count in (("sent", samples.sent), ("dropped", samples.dropped), ("lost", samples.lost))
        ),
    )


def _shown(desk: Desk) -> bool:
    """Tell whether anything was predicted or learned from."""
    return desk.link is not None or any(desk.counts[reason] for reason in Reason)


def _gains(desk: Desk) -> Iterator[tuple[Labels, float]]:
    for kind, gain in (("goodput", desk.proof.goodput), ("latency", desk.proof.latency)):
        if gain is not None:
            for name in ("mean", "low", "high"):
                yield (kind, name), getattr(gain, name)


def _arms(desk: Desk) -> Iterator[tuple[Labels, float]]:
    for kind, gain in (("goodput", desk.proof.goodput), ("latency", desk.proof.latency)):
        if gain is not None:
            yield (kind, "predicted"), gain.predicted
            yield (kind, "heuristic"), gain.heuristic
