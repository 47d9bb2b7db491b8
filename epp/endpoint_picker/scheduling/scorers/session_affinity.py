"""session-affinity-scorer: prefers the endpoint that the session is bound to."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Scorer
from endpoint_picker.scheduling.session import SessionAffinity


class SessionAffinityScorer(SessionAffinity, Scorer):
    """1 for the endpoint that the session is bound to, 0 for the others.

    Strategies and parameters are those of session-affinity-filter.
    """

    __slots__ = ()
    type_name = "session-affinity-scorer"
    bounded: ClassVar[bool] = True

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return 1 for the bound row."""
        scores = np.zeros(candidates.rows.size)
        at = self.bound(request, candidates)
        if at is not None:
            scores[at] = 1.0
        return scores
