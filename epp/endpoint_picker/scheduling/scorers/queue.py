"""queue-scorer: prefers the shortest effective queue (ledger.py says what that is)."""

from typing import ClassVar

from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Scorer
from endpoint_picker.scheduling.relative import lower_is_better


class QueueScorer(Scorer):
    """(max - q) / (max - min), q = waiting + unseen * slowness; without any metrics q = requests in flight.

    Slowness is the mean time that the endpoint takes for a request over that of all: within one scrape
    interval a server twice as fast gets twice as many requests.
    """

    __slots__ = ()
    type_name = "queue-scorer"
    bounded: ClassVar[bool] = True

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return 1.0 for the shortest queue, 0.0 for the longest, linear between."""
        rows = candidates.rows
        return lower_is_better(table.waiting[rows] + table.unseen_work[rows], table.inflight_requests[rows])
