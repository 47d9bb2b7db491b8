"""Where an endpoint runs, by the labels of its pod: shared by the topology plugins. Pure."""

from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Rows
from endpoint_picker.scheduling.candidates import NO_PEER, Candidates
from endpoint_picker.scheduling.plugin import Plugin, PluginParams

#: Levels from the nearest to the farthest.
LEVELS: Final = ("host", "rack", "zone", "region")
DEFAULT_TOPOLOGY: Final = "topology-extractor"

Place = tuple[str, str, str, str]
"""Host, rack, zone and region; "" is unknown."""


class TopologyParams(PluginParams):
    """Parameters of topology-extractor."""

    hostname_label: str = ""
    """Pod label with the host; the pod's node when empty."""
    rack_label: str = "topology.kubernetes.io/rack"
    """Pod label with the rack; none when empty."""
    zone_label: str = "topology.kubernetes.io/zone"
    """Pod label with the zone; none when empty."""
    region_label: str = "topology.kubernetes.io/region"
    """Pod label with the region; none when empty."""


class TopologyExtractor(Plugin):
    """Where endpoints run: the host by the pod's node, rack, zone and region by labels of the pod.

    From 1.35 on Kubernetes copies the zone and the region of a node to its pods; other labels have to be set
    on the pods. The picker does not read nodes.
    """

    __slots__ = ("_labels",)
    type_name: ClassVar[str] = DEFAULT_TOPOLOGY
    params_type = TopologyParams

    def __init__(self, params: TopologyParams) -> None:
        self._labels = (params.hostname_label, params.rack_label, params.zone_label, params.region_label)

    def place_of(self, endpoint: Endpoint) -> Place:
        """Return where the endpoint runs."""
        host, rack, zone, region = (endpoint.labels.get(label, "") if label else "" for label in self._labels)
        return (host if self._labels[0] else endpoint.node, rack, zone, region)


class TopologyAffinityParams(PluginParams):
    """Parameters of topology-affinity-scorer."""

    topology_producer_name: str = Field(default=DEFAULT_TOPOLOGY, min_length=1)
    """Name of the topology-extractor that says where endpoints run."""


class Nearness:
    """How near each candidate is to the request's peer endpoint."""

    __slots__ = ("_extractor", "_name", "_places", "_table", "_version")

    def __init__(self, name: str) -> None:
        self._name = name
        self._extractor = TopologyExtractor(TopologyParams())
        self._table: EndpointTable | None = None
        self._version = -1
        self._places: list[Place | None] = []

    def fault_among(self, plugins: Mapping[str, Plugin]) -> str:
        """Take the extractor; return why that cannot be done, "" when it can."""
        if not any(each.chooses_peer for each in plugins.values()):
            return "it would do nothing: no profile handler of this configuration chooses a peer endpoint"
        found = plugins.get(self._name)
        if isinstance(found, TopologyExtractor):
            self._extractor = found
        elif found is not None or self._name != DEFAULT_TOPOLOGY:
            return f'topologyProducerName "{self._name}" is no {DEFAULT_TOPOLOGY} of this configuration'
        return ""

    def levels(self, candidates: Candidates, table: EndpointTable) -> Rows | None:
        """Return for each candidate the nearest level that it shares with the peer: its number in LEVELS.

        len(LEVELS) is none. None: there is no peer, or it is not known where it runs.
        """
        if table.version != self._version or table is not self._table:
            self._places = [
                None if each is None else self._extractor.place_of(each) for each in table.endpoints
            ]
            self._table, self._version = table, table.version
        peer = self._places[candidates.peer] if candidates.peer != NO_PEER else None
        if peer is None or not any(peer):
            return None
        rows = candidates.rows.tolist()
        return np.array([_level(self._places[row], peer) for row in rows], dtype=np.intp)


def _level(place: Place | None, peer: Place) -> int:
    if place is not None:
        for level, (own, other) in enumerate(zip(place, peer, strict=True)):
            if own and own == other:
                return level
    return len(LEVELS)
