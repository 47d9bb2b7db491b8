"""The page of metrics of a prediction server."""

from collections.abc import Iterator

from latency_contract.states import State
from latency_predictor.serving.follower import Follower
from latency_predictor.serving.kernel import IS_COMPILED
from latency_predictor.serving.service import BOUNDS, PredictionService

PREFIX = "headroom_predictor_"


def exposition(service: PredictionService, follower: Follower) -> str:
    """Return the page in Prometheus' text format."""
    return "\n".join(_lines(service, follower)) + "\n"


def _lines(service: PredictionService, follower: Follower) -> Iterator[str]:
    model = service.model
    yield from _one("calls_total", "counter", "Calls that were answered.", service.calls)
    yield from _one("rows_total", "counter", "Rows that were predicted.", service.rows)
    yield from _one("refused_total", "counter", "Calls that were no valid question.", service.refused)
    yield from _one("bundle_loads_total", "counter", "Bundles that came into use.", follower.loads)
    yield from _one("bundle_failures_total", "counter", "Bundles that could not be used.", follower.failures)
    yield from _one(
        "bundle_loaded_timestamp_seconds", "gauge", "When the bundle came into use.", service.loaded_at
    )
    created = 0.0 if model is None else model.manifest.created_s
    yield from _one("bundle_created_timestamp_seconds", "gauge", "When the bundle was made.", created)
    yield from _one("is_compiled", "gauge", "1 when trees are evaluated by compiled code.", int(IS_COMPILED))
    yield from _head("state", "gauge", "1 for the state that answers have.")
    for state in State:
        yield f'{PREFIX}state{{state="{state.name.lower()}"}} {int(state is service.state)}'
    yield from _head("evaluation_seconds", "histogram", "Time of one call's evaluation.")
    seen = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), service.counts, strict=True):
        seen += count
        yield f'{PREFIX}evaluation_seconds_bucket{{le="{bound}"}} {seen}'
    yield f"{PREFIX}evaluation_seconds_count {seen}"
    yield f"{PREFIX}evaluation_seconds_sum {service.seconds:.9g}"


def _one(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"{PREFIX}{name} {value:.17g}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"
