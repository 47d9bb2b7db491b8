"""latency-slo-admitter: refuses what may be shed when no endpoint is predicted to meet its objectives."""

from typing import Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Refusal
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import LATENCY_PREDICTION, Candidates
from endpoint_picker.scheduling.plugin import LateAdmitter

#: Fraction of the KV cache in use below which an endpoint counts as idle.
IDLE_KV: Final = 0.02

_SHED: Final = Refusal(
    Outcome.SATURATED, "no endpoint is predicted to meet the request's objectives, and it may be shed"
)


class LatencySloAdmitter(LateAdmitter):
    """Refuses (429) a request of negative priority with an objective that no endpoint is predicted to meet.

    It admits when nothing is predicted, and when an endpoint runs no request or uses less than 2 % of its KV
    cache.
    """

    __slots__ = ()
    type_name = "latency-slo-admitter"
    consumes = frozenset({LATENCY_PREDICTION})

    @override
    def refusal(
        self, request: InferenceRequest, candidates: Candidates, table: EndpointTable
    ) -> Refusal | None:
        """Return the refusal."""
        prediction = candidates.prediction
        if request.priority >= 0 or prediction is None or prediction.reason:
            return None
        if not prediction.objectives.any or np.isnan(prediction.first).all():
            return None
        if ((prediction.first_headroom > 0.0) & (prediction.tpot_headroom >= 0.0)).any():
            return None
        rows = prediction.rows
        if (table.running[rows] == 0.0).any() or (table.kv_usage[rows] < IDLE_KV).any():
            return None
        return _SHED
