"""queue-scorer: prefers the shortest effective queue (ledger.py says what that is)."""

from typing import ClassVar

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import Plugin
from endpoint_picker.scheduling.relative import lower_is_better


class QueueScorer(Plugin):
    """(max - q) / (max - min) with q = waiting + unseen; without any metrics q = requests in flight."""

    __slots__ = ()
    type_name = "queue-scorer"
    bounded: ClassVar[bool] = True
    needs_prompt: ClassVar[bool] = False

    def score(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Floats:
        """Return 1.0 for the shortest queue, 0.0 for the longest, linear between."""
        return lower_is_better(table.waiting[rows] + table.unseen[rows], table.inflight_requests[rows])
