"""Observed and predicted times by model, and missed objectives, for metrics. Pure."""

from typing import Final

from endpoint_picker.latency.accuracy import SECOND_BOUNDS, Spread
from endpoint_picker.latency.objectives import Objectives
from endpoint_picker.latency.samples import Values
from latency_contract.schema import Target

#: Models kept apart; further ones count as OTHER.
MAX_MODELS: Final = 100
OTHER: Final = "other"
#: Bounds of the time that a prediction took, in seconds.
TOOK_BOUNDS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5,
)  # fmt: skip


class ModelFigures:
    """The figures of one model."""

    __slots__ = (
        "last",
        "missed_tpot",
        "missed_ttft",
        "predicted_tpot",
        "predicted_ttft",
        "took",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.ttft, self.tpot = Spread(SECOND_BOUNDS[Target.TTFT]), Spread(SECOND_BOUNDS[Target.TPOT])
        self.predicted_ttft = Spread(SECOND_BOUNDS[Target.TTFT])
        self.predicted_tpot = Spread(SECOND_BOUNDS[Target.TPOT])
        self.took = Spread(TOOK_BOUNDS)
        self.missed_ttft = self.missed_tpot = 0
        self.last: dict[str, float] = {}
        """The newest request's values by the type label of inference_request_metric."""


class Figures:
    """Figures by model name."""

    __slots__ = ("models", "others", "streams")

    def __init__(self) -> None:
        self.models: dict[str, ModelFigures] = {}
        self.streams = self.others = 0
        """Responses that were streams, and that were not."""

    @property
    def mixes_streaming(self) -> bool:
        """Tell whether more than one in fifty of many responses is of the other kind: times then mix."""
        few = min(self.streams, self.others)
        return few >= 20 and 50 * few > self.streams + self.others

    def ended(
        self,
        model: str,
        objectives: Objectives,
        times: Values,
        medians: Values,
        took_s: float,
        *,
        streaming: bool,
    ) -> None:
        """Note a request. Without `streaming` the time to the end stands for TTFT, as documented."""
        first = Target.TTFT if streaming else Target.E2E
        ttft, predicted = times[first], medians[first]
        if ttft != ttft and predicted != predicted:
            return
        found = self.models.get(model)
        if found is None:
            key = model if len(self.models) < MAX_MODELS else OTHER
            found = self.models.setdefault(key, ModelFigures())
        last = found.last
        if ttft == ttft:
            found.ttft.add(ttft)
            last["ttft"] = ttft
            missed = bool(objectives.ttft_s) and ttft > objectives.ttft_s
            found.missed_ttft += missed
            last["ttft_slo_violation"] = float(missed)
        if predicted == predicted:
            found.predicted_ttft.add(predicted)
            found.took.add(took_s)
            last["predicted_ttft"] = predicted
            last["ttft_prediction_duration"] = took_s
        if not streaming:
            return
        tpot, predicted = times[Target.TPOT], medians[Target.TPOT]
        if tpot == tpot:
            found.tpot.add(tpot)
            last["tpot"] = tpot
            missed = bool(objectives.tpot_s) and tpot > objectives.tpot_s
            found.missed_tpot += missed
            last["tpot_slo_violation"] = float(missed)
        if predicted == predicted:
            found.predicted_tpot.add(predicted)
            last["predicted_tpot"] = predicted
            last["tpot_prediction_duration"] = took_s
