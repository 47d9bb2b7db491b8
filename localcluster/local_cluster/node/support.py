"""The fields of a pod that this node does not support, by name, so that none is ignored silently. Pure.

securityContext, resources and scheduling hints are accepted and have no effect: containers are host processes
of the user who runs the cluster.
"""

from collections.abc import Iterator
from typing import Final

from local_cluster.node.objects import Json

VOLUME_KINDS: Final = frozenset({"configMap", "emptyDir", "projected", "downwardAPI"})
_PROJECTED_KINDS: Final = frozenset({"serviceAccountToken", "configMap", "downwardAPI"})
_PROBE_KINDS: Final = frozenset({"httpGet", "tcpSocket", "grpc"})
_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")


def refusals(pod: Json) -> list[str]:
    """Return one sentence for each field that this node does not support; empty when it can run the pod."""
    return [*_of_pod(pod["spec"]), *_of_volumes(pod["spec"]), *_of_containers(pod["spec"])]


def _of_pod(spec: Json) -> Iterator[str]:
    for name in (
        "initContainers",
        "ephemeralContainers",
        "readinessGates",
        "hostAliases",
        "activeDeadlineSeconds",
    ):
        if spec.get(name):
            yield f"spec.{name} is not supported by the local node"
    for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if spec.get(name):
            yield f"spec.{name}: true is not supported by the local node"


def _of_volumes(spec: Json) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        where = f'spec.volumes["{volume["name"]}"]'
        for kind in volume.keys() - VOLUME_KINDS - {"name"}:
            yield f"{where}.{kind} is not supported by the local node"
        for source in (volume.get("projected") or {}).get("sources") or ():
            for kind in source.keys() - _PROJECTED_KINDS:
                yield f"{where}.projected.{kind} is not supported by the local node"


def _of_containers(spec: Json) -> Iterator[str]:
    for container in spec["containers"]:
        where = f'spec.containers["{container["name"]}"]'
        for probe in _PROBES:
            if (given := container.get(probe)) is not None and not given.keys() & _PROBE_KINDS:
                yield f"{where}.{probe}: only httpGet, tcpSocket and grpc are supported by the local node"
        for mount in container.get("volumeMounts") or ():
            for name in ("subPath", "subPathExpr"):
                if mount.get(name):
                    yield f"{where}.volumeMounts.{name} is not supported by the local node"
        for entry in container.get("env") or ():
            for kind in (entry.get("valueFrom") or {}).keys() - {"fieldRef", "configMapKeyRef"}:
                yield f'{where}.env["{entry["name"]}"].{kind} is not supported by the local node'
        for source in container.get("envFrom") or ():
            if "secretRef" in source:
                yield f"{where}.envFrom.secretRef is not supported by the local node"
        for hook, allowed in (("postStart", frozenset[str]()), ("preStop", frozenset({"sleep", "httpGet"}))):
            given = (container.get("lifecycle") or {}).get(hook) or {}
            for kind in given.keys() - allowed:
                yield f"{where}.lifecycle.{hook}.{kind} is not supported by the local node"
