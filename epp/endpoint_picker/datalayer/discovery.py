"""Turns a pool and its pods, as the API server sends them, into endpoints. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster_client.objects import mapping, sequence, strings
from cluster_client.pods import Pod, served_ports
from cluster_client.selectors import selector_query, selects
from endpoint_picker.datalayer.table import Endpoint


@dataclass(frozen=True, slots=True)
class Pool:
    """The fields of an InferencePool that discovery reads."""

    selector: Mapping[str, str]
    ports: tuple[int, ...]

    @property
    def label_selector(self) -> str:
        """Return the selector in the API's query syntax, in a stable order."""
        return selector_query(self.selector)


def pool_of(manifest: Mapping[str, Any]) -> Pool | None:
    """Return the pool, None when it is being deleted or selects nothing."""
    metadata = mapping(manifest.get("metadata"))
    spec = mapping(manifest.get("spec"))
    selector = strings(mapping(spec.get("selector")).get("matchLabels"))
    if metadata.get("deletionTimestamp") or not selector:
        return None
    numbers = [mapping(entry).get("number") for entry in sequence(spec.get("targetPorts"))]
    return Pool(selector=selector, ports=tuple(number for number in numbers if isinstance(number, int)))


def endpoints_of(pool: Pool | None, pods: Iterable[Pod]) -> list[Endpoint]:
    """Return an endpoint for every pod of the pool with an address, and every port that it serves.

    A pod that is not ready gives endpoints that are not ready: it may become ready again with its cache.
    """
    if pool is None:
        return []
    found = []
    for pod in pods:
        if not pod.address or pod.ended or not selects(pool.selector, pod.labels):
            continue
        served = served_ports(pod.active_ports, pool.ports)
        for index, port in enumerate(pool.ports):
            if port in served:
                found.append(
                    Endpoint(
                        name=f"{pod.name}-rank-{index}",
                        namespace=pod.namespace,
                        address=pod.address,
                        port=port,
                        labels=pod.labels,
                        ready=pod.ready,
                        node_address=pod.node_address,
                        node=pod.node,
                        incarnation=pod.incarnation,
                    )
                )
    return found
