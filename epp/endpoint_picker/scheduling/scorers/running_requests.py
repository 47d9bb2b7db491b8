"""running-requests-size-scorer: prefers the smallest batch."""

from typing import ClassVar

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import Plugin
from endpoint_picker.scheduling.relative import lower_is_better


class RunningRequestsScorer(Plugin):
    """(max - r) / (max - min) with r = running + unseen; without any metrics r = requests in flight."""

    __slots__ = ()
    type_name = "running-requests-size-scorer"
    bounded: ClassVar[bool] = True
    needs_prompt: ClassVar[bool] = False

    def score(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Floats:
        """Return 1.0 for the smallest batch, 0.0 for the largest, linear between."""
        return lower_is_better(table.running[rows] + table.unseen[rows], table.inflight_requests[rows])
