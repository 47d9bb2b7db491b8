"""load-aware-scorer: an absolute score of the queue, where the others are relative."""

from typing import ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import PluginParams, Scorer


class LoadAwareParams(PluginParams):
    """Parameters of load-aware-scorer."""

    threshold: int = Field(default=128, gt=0)
    """Queue length that scores 0."""


class LoadAwareScorer(Scorer):
    """0.5 * (1 - min(q, threshold) / threshold) with q = waiting + unseen; 0 where q is unknown."""

    __slots__ = ("_threshold",)
    type_name = "load-aware-scorer"
    params_type = LoadAwareParams
    bounded: ClassVar[bool] = True

    def __init__(self, params: LoadAwareParams) -> None:
        self._threshold = float(params.threshold)

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return 0.5 for an empty queue, falling to 0."""
        rows = candidates.rows
        queue = table.waiting[rows] + table.unseen[rows]
        # fmin takes the threshold where the queue is NaN.
        return 0.5 - 0.5 * np.fmin(queue, self._threshold) / self._threshold
