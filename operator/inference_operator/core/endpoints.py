"""Counts of a pool's endpoints: each target port of each selected pod is one endpoint. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster_client.pods import pod_of, served_ports


@dataclass(frozen=True, slots=True)
class EndpointTally:
    """Counts of a pool's endpoints."""

    ready: int = 0
    """Endpoints of pods that are ready, have an address and are not terminating."""
    total: int = 0
    """Endpoints of pods that have not ended, ready or not."""


def tally(pods: Iterable[Mapping[str, Any]], ports: Sequence[int]) -> EndpointTally:
    """Count the endpoints that these pods give a pool with these target ports."""
    ready = total = 0
    for pod in map(pod_of, pods):
        if pod.ended:
            continue
        count = len(served_ports(pod.active_ports, ports))
        total += count
        if pod.is_serving:
            ready += count
    return EndpointTally(ready, total)
