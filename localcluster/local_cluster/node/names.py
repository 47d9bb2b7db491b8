"""The addresses that a Service's name resolves to. Pure.

There is no virtual address here: a name resolves to the addresses of the ready pods behind the Service, so a
Service's port has to equal its target port.
"""

from collections.abc import Iterable
from typing import Final

from local_cluster.node.objects import Json, Key, condition_is_true, has_labels, is_deleting

DOMAIN: Final = "cluster.local"
_SUFFIXES: Final = (("svc", "cluster", "local"), ("svc",), ())


def service_key(name: str) -> Key | None:
    """Return (namespace, service) that a DNS name asks for, None if it is not a Service's name.

    `s.ns`, `s.ns.svc` and `s.ns.svc.cluster.local` are such names. A bare `s` is not: the client's resolver
    appends a search domain to it.
    """
    labels = tuple(name.lower().rstrip(".").split("."))
    for suffix in _SUFFIXES:
        if len(labels) == len(suffix) + 2 and labels[2:] == suffix:
            return labels[1], labels[0]
    return None


def service_addresses(service: Json, pods: Iterable[Json]) -> list[str]:
    """Return the addresses of the pods that a Service selects, in the order given.

    Only pods that are ready and not being deleted count, unless publishNotReadyAddresses is set.
    """
    spec = service["spec"]
    selector = spec.get("selector")
    if not selector:
        return []
    with_unready = bool(spec.get("publishNotReadyAddresses"))
    namespace = service["metadata"]["namespace"]
    return [
        pod["status"]["podIP"]
        for pod in pods
        if pod["metadata"]["namespace"] == namespace
        and has_labels(pod, selector)
        and pod.get("status", {}).get("podIP")
        and pod["status"].get("phase") not in {"Succeeded", "Failed"}
        and (with_unready or (condition_is_true(pod, "Ready") and not is_deleting(pod)))
    ]


def resolver_file(namespace: str, server: str) -> str:
    """Return a container's /etc/resolv.conf."""
    search = f"{namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
    return f"nameserver {server}\nsearch {search}\noptions ndots:5 timeout:2 attempts:2\n"


def hosts_file(
    namespace: str, host_name: str, address: str, services: Iterable[tuple[Key, list[str]]]
) -> str:
    """Return a container's /etc/hosts: itself, and each given Service under all of its names."""
    lines = ["127.0.0.1 localhost", "::1 localhost", f"{address} {host_name}"]
    for (where, name), addresses in services:
        names = [f"{name}.{where}.svc.{DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}"]
        names += [name] if where == namespace else []
        lines += [f"{each} {' '.join(names)}" for each in addresses]
    return "\n".join(lines) + "\n"
