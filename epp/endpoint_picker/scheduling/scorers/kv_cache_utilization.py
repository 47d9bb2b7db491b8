"""kv-cache-utilization-scorer: prefers the server with most of its KV cache free."""

from typing import ClassVar

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import Plugin


class KvCacheUtilizationScorer(Plugin):
    """1 - usage; 0 where usage is unknown."""

    __slots__ = ()
    type_name = "kv-cache-utilization-scorer"
    bounded: ClassVar[bool] = True
    needs_prompt: ClassVar[bool] = False

    def score(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Floats:
        """Return the free fraction of each row's KV cache."""
        free: Floats = 1.0 - table.kv_usage[rows]
        # fmax takes the number where the other is NaN: unknown becomes 0.
        return np.fmax(free, 0.0, out=free)
