"""active-request-scorer: prefers the server with the fewest requests in flight from this picker."""

from typing import ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import PluginParams, Scorer


class ActiveRequestParams(PluginParams):
    """Parameters of active-request-scorer."""

    idle_threshold: int = Field(default=0, ge=0)
    """A server with no more than this many requests scores 1."""
    max_busy_score: float = Field(default=1.0, ge=0.0, le=1.0)
    """Ceiling of the score of a server above the threshold."""


class ActiveRequestScorer(Scorer):
    """1 when c <= idle threshold, else (max - c) / max * ceiling; c counts this picker's requests."""

    __slots__ = ("_ceiling", "_idle")
    type_name = "active-request-scorer"
    params_type = ActiveRequestParams
    bounded: ClassVar[bool] = True

    def __init__(self, params: ActiveRequestParams) -> None:
        self._idle = params.idle_threshold
        self._ceiling = params.max_busy_score

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the score of each row by its requests in flight."""
        rows = candidates.rows
        count = table.inflight_requests[rows]
        most = count.max()
        if most <= self._idle:
            return np.ones(rows.size)
        busy: Floats = (most - count) * (self._ceiling / most)
        busy[count <= self._idle] = 1.0
        return busy
