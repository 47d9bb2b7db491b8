"""Readiness, address and ports of a pod, as an InferencePool sees it. Pure.

Operator and picker both use this module, so that the operator counts the endpoints that the picker uses. A
malformed pod is not ready; nothing here raises over one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from cluster_client.objects import Object, key_of, mapping, sequence, strings
from inference_api.names import ACTIVE_PORTS_ANNOTATIONS

_ENDED: Final = frozenset({"Succeeded", "Failed"})
#: Digits of the highest port, 65535. Longer numbers are not read: int() of a long text is slow.
_PORT_DIGITS: Final = 5


@dataclass(frozen=True, slots=True)
class Pod:
    """The facts of a pod that its endpoints depend on. Equal pods give equal endpoints."""

    name: str
    namespace: str
    address: str
    """An IP address in its canonical spelling; "" until the pod has one."""
    node_address: str
    """Address of its node, likewise."""
    ready: bool
    """The Ready condition is True, and the pod is neither being deleted nor ended."""
    ended: bool
    """The phase is Succeeded or Failed: no container will run again."""
    labels: Mapping[str, str]
    active_ports: str | None
    """Value of the active-ports annotation, None when absent."""
    incarnation: str
    """uid and restarts: a server that restarted has lost its cache."""
    node: str = ""
    """Name of the node that it is bound to; "" until then."""

    @property
    def is_serving(self) -> bool:
        """Return whether requests may be sent to the pod."""
        return self.ready and bool(self.address)


def pod_of(manifest: Object) -> Pod:
    """Return the facts of a pod's manifest."""
    metadata, status = mapping(manifest.get("metadata")), mapping(manifest.get("status"))
    namespace, name = key_of(manifest)
    annotations = strings(metadata.get("annotations"))
    node = mapping(manifest.get("spec")).get("nodeName")
    ended = status.get("phase") in _ENDED
    restarts = sum(_restarts(each) for each in sequence(status.get("containerStatuses")))
    return Pod(
        name=name,
        namespace=namespace,
        address=_address(status.get("podIP")),
        node_address=_address(status.get("hostIP")),
        ready=has_ready_condition(manifest) and not metadata.get("deletionTimestamp") and not ended,
        ended=ended,
        labels=strings(metadata.get("labels")),
        active_ports=next((annotations[key] for key in ACTIVE_PORTS_ANNOTATIONS if key in annotations), None),
        incarnation=f"{metadata.get('uid', '')}/{restarts}",
        node=node if isinstance(node, str) else "",
    )


def has_ready_condition(manifest: Object) -> bool:
    """Return whether the pod's Ready condition is True, as it may still be while the pod is being deleted.

    A readiness gate whose condition is not True counts at once; the kubelet sets Ready some time later.
    """
    conditions = map(mapping, sequence(mapping(manifest.get("status")).get("conditions")))
    met = {str(each.get("type")) for each in conditions if each.get("status") == "True"}
    gates = map(mapping, sequence(mapping(manifest.get("spec")).get("readinessGates")))
    return "Ready" in met and all(str(each.get("conditionType")) in met for each in gates)


def served_ports(active_ports: str | None, ports: Iterable[int]) -> frozenset[int]:
    """Return those of a pool's target ports that a pod with this annotation serves.

    Without the annotation (None) the pod serves all; with an empty one, none. Words that are no port of the
    pool are ignored.
    """
    if active_ports is None:
        return frozenset(ports)
    words = (word.strip() for word in active_ports.split(","))
    listed = {int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= _PORT_DIGITS}
    return frozenset(port for port in ports if port in listed)


def ip_literal(text: str) -> str:
    """Return an address in its canonical spelling, for headers and requests.

    Raises ValueError when the text is no IP address, or has a zone: a zone may be any text, and its meaning
    differs between hosts.
    """
    if "%" in text:
        raise ValueError("an address without a zone is needed")
    return str(ip_address(text))


def _address(value: object) -> str:
    try:
        return ip_literal(value) if isinstance(value, str) else ""
    except ValueError:
        return ""


def _restarts(status: object) -> int:
    count = mapping(status).get("restartCount")
    return count if isinstance(count, int) else 0
