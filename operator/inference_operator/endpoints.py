"""Counting a pool's endpoints: each target port of each selected pod is one. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_api import names


@dataclass(frozen=True, slots=True)
class EndpointTally:
    """Endpoints of a pool."""

    ready: int = 0
    """Endpoints of pods that are ready, have an address and are not terminating."""
    total: int = 0
    """All endpoints of pods that have not ended."""


def tally(pods: Iterable[Mapping[str, Any]], ports: Sequence[int]) -> EndpointTally:
    """Count the endpoints that these pods give a pool with these target ports."""
    ready = total = 0
    for pod in pods:
        if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        count = len(active_ports(pod, ports))
        total += count
        if is_ready(pod) and not pod["metadata"].get("deletionTimestamp") and pod["status"].get("podIP"):
            ready += count
    return EndpointTally(ready, total)


def active_ports(pod: Mapping[str, Any], ports: Sequence[int]) -> frozenset[int]:
    """Return the target ports that the pod serves: all, unless its annotation narrows them.

    Present but empty means none; what is no number, or none of the pool's, is ignored.
    """
    annotations = pod.get("metadata", {}).get("annotations") or {}
    for name in names.ACTIVE_PORTS_ANNOTATIONS:
        if name in annotations:
            words = (word.strip() for word in annotations[name].split(","))
            return frozenset(int(word) for word in words if word.isdecimal()) & frozenset(ports)
    return frozenset(ports)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod's Ready condition is True."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
