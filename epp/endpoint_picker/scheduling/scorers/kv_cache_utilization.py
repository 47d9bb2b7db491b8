"""kv-cache-utilization-scorer: prefers the server with most of its KV cache free."""

from typing import ClassVar, Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Scorer

# Arrays of no dimension: numpy takes twice as long with Python floats.
_ONE: Final = np.array(1.0)
_ZERO: Final = np.array(0.0)


class KvCacheUtilizationScorer(Scorer):
    """1 - usage; 0 where usage is unknown."""

    __slots__ = ()
    type_name = "kv-cache-utilization-scorer"
    bounded: ClassVar[bool] = True

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the free fraction of each row's KV cache."""
        rows = candidates.rows
        free: Floats = _ONE - table.kv_usage[rows]
        # fmax takes the number where the other is NaN: unknown becomes 0.
        np.fmax(free, _ZERO, out=free)
        return free
