"""precise-prefix-cache-scorer: the deprecated type that is producer and scorer in one."""

from typing import ClassVar

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Scorer
from endpoint_picker.scheduling.producers.precise_prefix_cache import PrecisePrefixCacheProducer


class PrecisePrefixCacheScorer(PrecisePrefixCacheProducer, Scorer):
    """A precise-prefix-cache-producer that scores by the matched part of the prompt."""

    __slots__ = ()
    type_name = "precise-prefix-cache-scorer"
    bounded: ClassVar[bool] = True

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the cached part of the prompt on each row."""
        if not candidates.prompt_blocks:
            return np.zeros(candidates.rows.size)
        return candidates.prefix_matched / float(candidates.prompt_blocks)
