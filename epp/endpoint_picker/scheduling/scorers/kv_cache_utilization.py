"""kv-cache-utilization-scorer: prefers the server with most of its KV cache free."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Scorer


class KvCacheUtilizationScorer(Scorer):
    """1 - usage; 0 where usage is unknown."""

    __slots__ = ()
    type_name = "kv-cache-utilization-scorer"
    bounded: ClassVar[bool] = True

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the free fraction of each row's KV cache."""
        rows = candidates.rows
        free: Floats = 1.0 - table.kv_usage[rows]
        # fmax takes the number where the other is NaN: unknown becomes 0.
        return np.fmax(free, 0.0, out=free)
