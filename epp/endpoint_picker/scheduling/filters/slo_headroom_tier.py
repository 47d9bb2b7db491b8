"""slo-headroom-tier-filter: keeps the endpoints that are predicted to meet the request's objectives."""

from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import LATENCY_PREDICTION, Candidates
from endpoint_picker.scheduling.plugin import Filter, PluginParams, Pool, RandomSource


class SloHeadroomTierParams(PluginParams):
    """Parameters of slo-headroom-tier-filter."""

    epsilon_explore_neg: float = Field(default=0.01, ge=0.0, le=1.0)
    """Part of the requests that go to the endpoints predicted to miss, so that these are measured, too."""


class SloHeadroomTierFilter(Filter):
    """Keeps the tier with TTFT and TPOT headroom >= 0; all where one tier is empty or nothing is predicted.

    An endpoint without a prediction is in the negative tier.
    """

    __slots__ = ("_explore", "_rng")
    type_name = "slo-headroom-tier-filter"
    params_type = SloHeadroomTierParams
    consumes = frozenset({LATENCY_PREDICTION})

    def __init__(self, params: SloHeadroomTierParams) -> None:
        self._explore = params.epsilon_explore_neg
        self._rng: RandomSource

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's randomness."""
        self._rng = pool.rng

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return one tier's rows."""
        rows, prediction = candidates.rows, candidates.prediction
        if prediction is None or prediction.reason or not prediction.objectives.any:
            return rows  # without an objective every endpoint is in the negative tier
        first = prediction.of(prediction.first_headroom, rows)
        tpot = prediction.of(prediction.tpot_headroom, rows)
        positive = (first >= 0.0) & (tpot >= 0.0)
        if positive.all() or not positive.any():
            return rows
        if self._explore and self._rng.random(1)[0] < self._explore:
            return rows[~positive]
        return rows[positive]
