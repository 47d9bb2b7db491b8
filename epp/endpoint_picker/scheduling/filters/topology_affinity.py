"""topology-affinity-filter: keeps the endpoints near the endpoint that another profile chose."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter, Plugin, PluginParams
from endpoint_picker.scheduling.topology import DEFAULT_TOPOLOGY, LEVELS, Nearness


class TopologyFilterParams(PluginParams):
    """Parameters of topology-affinity-filter."""

    min_affinity: Literal["host", "rack", "zone", "region"] = "host"
    """The farthest level that an endpoint may share with the peer to stay."""
    topology_producer_name: str = Field(default=DEFAULT_TOPOLOGY, min_length=1)
    """Name of the topology-extractor that says where endpoints run."""


class TopologyAffinityFilter(Filter):
    """Keeps the endpoints that share the level with the request's peer, or a nearer one; all if none does.

    The peer is the endpoint that an earlier profile of the same request chose. Without one all stay.
    """

    __slots__ = ("_farthest", "_nearness")
    type_name = "topology-affinity-filter"
    params_type = TopologyFilterParams

    def __init__(self, params: TopologyFilterParams) -> None:
        self._farthest = LEVELS.index(params.min_affinity)
        self._nearness = Nearness(params.topology_producer_name)

    @override
    def fault_among(self, plugins: Mapping[str, Plugin], profiles: Sequence[str]) -> str:
        """Demand the extractor."""
        return self._nearness.fault_among(plugins)

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows that are near enough."""
        rows, levels = candidates.rows, self._nearness.levels(candidates, table)
        if levels is None:
            return rows
        kept: Rows = rows[levels <= self._farthest]
        return kept if kept.size else rows
