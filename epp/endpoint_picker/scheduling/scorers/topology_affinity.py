"""topology-affinity-scorer: prefers the endpoints near the endpoint that another profile chose."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Plugin, Scorer
from endpoint_picker.scheduling.topology import Nearness, TopologyAffinityParams

#: Score of each of LEVELS, and of none. They follow the speed at which a KV cache moves.
_SCORES: Final = np.array([1.0, 0.20, 0.05, 0.02, 0.0])


class TopologyAffinityScorer(Scorer):
    """The nearest level that is shared with the peer: host 1, rack 0.2, zone 0.05, region 0.02, none 0.

    The peer is the endpoint that an earlier profile of the same request chose. Without one all score 0.
    """

    __slots__ = ("_nearness",)
    type_name = "topology-affinity-scorer"
    params_type = TopologyAffinityParams
    bounded: ClassVar[bool] = True

    def __init__(self, params: TopologyAffinityParams) -> None:
        self._nearness = Nearness(params.topology_producer_name)

    @override
    def fault_among(self, plugins: Mapping[str, Plugin], profiles: Sequence[str]) -> str:
        """Demand the extractor."""
        return self._nearness.fault_among(plugins)

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the score of each row by its level."""
        levels = self._nearness.levels(candidates, table)
        scores: Floats = np.zeros(candidates.rows.size) if levels is None else _SCORES[levels]
        return scores
