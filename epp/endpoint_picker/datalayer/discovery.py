"""From a pool and its pods to endpoints. Pure: objects as the API server gives them in, endpoints out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from endpoint_picker.datalayer.table import Endpoint
from inference_api.names import ACTIVE_PORTS_ANNOTATIONS

_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Pool:
    """What discovery needs of an InferencePool."""

    selector: Mapping[str, str]
    ports: tuple[int, ...]

    @property
    def label_selector(self) -> str:
        """Return the selector in the API's query syntax, in a stable order."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.selector.items()))


@dataclass(frozen=True, slots=True)
class Pod:
    """What discovery needs of a pod; the rest of the object is not kept."""

    name: str
    namespace: str
    address: str
    """"" until the pod has one, and when it is no IP literal."""
    ready: bool
    """Ready condition True and not being deleted."""
    finished: bool
    labels: Mapping[str, str]
    active_ports: str | None
    """Value of the active-ports annotation, None when absent."""
    incarnation: str
    """uid and restarts: a restarted container has lost its cache."""


def pool_of(manifest: Mapping[str, Any]) -> Pool | None:
    """Return the pool, None when it is being deleted or selects nothing."""
    metadata = _mapping(manifest.get("metadata"))
    spec = _mapping(manifest.get("spec"))
    selector = _strings(_mapping(spec.get("selector")).get("matchLabels"))
    if metadata.get("deletionTimestamp") or not selector:
        return None
    numbers = [_mapping(entry).get("number") for entry in spec.get("targetPorts") or ()]
    return Pool(selector=selector, ports=tuple(number for number in numbers if isinstance(number, int)))


def pod_of(manifest: Mapping[str, Any]) -> Pod:
    """Return what matters of a pod; what is missing or malformed makes it not ready rather than fail."""
    metadata, status = _mapping(manifest.get("metadata")), _mapping(manifest.get("status"))
    annotations = _strings(metadata.get("annotations"))
    conditions = [_mapping(each) for each in status.get("conditions") or ()]
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    restarts = sum(_restarts(each) for each in status.get("containerStatuses") or ())
    active = [annotations[key] for key in ACTIVE_PORTS_ANNOTATIONS if key in annotations]
    return Pod(
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace", "")),
        address=_ip(status.get("podIP")),
        ready=ready and not metadata.get("deletionTimestamp"),
        finished=status.get("phase") in _FINISHED,
        labels=_strings(metadata.get("labels")),
        active_ports=active[0] if active else None,
        incarnation=f"{metadata.get('uid', '')}/{restarts}",
    )


def endpoints_of(pool: Pool | None, pods: Iterable[Pod]) -> list[Endpoint]:
    """Return an endpoint for every pod of the pool with an address, and every port that it serves.

    Pods that are not ready give endpoints that are not: they may come back, with their cache.
    """
    if pool is None:
        return []
    found = []
    for pod in pods:
        if not pod.address or pod.finished or not _selects(pool, pod):
            continue
        active = None if pod.active_ports is None else _active(pod.active_ports)
        for index, port in enumerate(pool.ports):
            if active is None or port in active:
                found.append(
                    Endpoint(
                        name=f"{pod.name}-rank-{index}",
                        namespace=pod.namespace,
                        address=pod.address,
                        port=port,
                        labels=pod.labels,
                        ready=pod.ready,
                        incarnation=pod.incarnation,
                    )
                )
    return found


def _selects(pool: Pool, pod: Pod) -> bool:
    return all(pod.labels.get(key) == value for key, value in pool.selector.items())


def _active(value: str) -> frozenset[int]:
    """Read a comma list of ports; what is no port is ignored."""
    parts = (part.strip() for part in value.split(","))
    return frozenset(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) <= 5)


def ip_literal(text: str) -> str:
    """Return an address as it is written into headers and requests.

    Raises ValueError: the text is no IP address, or has a zone, which may be any text and means another
    thing to each host.
    """
    if "%" in text:
        raise ValueError("an address without a zone is needed")
    return str(ip_address(text))


def _ip(value: object) -> str:
    try:
        return ip_literal(value) if isinstance(value, str) else ""
    except ValueError:
        return ""


def _restarts(status: object) -> int:
    count = _mapping(status).get("restartCount")
    return count if isinstance(count, int) else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: object) -> dict[str, str]:
    return {str(key): str(each) for key, each in _mapping(value).items()}
