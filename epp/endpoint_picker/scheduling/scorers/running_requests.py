"""running-requests-size-scorer: prefers the smallest batch."""

from typing import ClassVar

from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Scorer
from endpoint_picker.scheduling.relative import lower_is_better


class RunningRequestsScorer(Scorer):
    """(max - r) / (max - min) with r = running + unseen; without any metrics r = requests in flight."""

    __slots__ = ()
    type_name = "running-requests-size-scorer"
    bounded: ClassVar[bool] = True

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return 1.0 for the smallest batch, 0.0 for the largest, linear between."""
        rows = candidates.rows
        return lower_is_better(table.running[rows] + table.unseen[rows], table.inflight_requests[rows])
