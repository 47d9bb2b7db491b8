"""A container's environment, command and arguments, as Kubernetes defines them. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from local_cluster.node.objects import Json

_SUBSCRIPT: Final = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()$]+)\))")


class MissingReferenceError(Exception):
    """A ConfigMap, a key or a field that the container refers to is missing (yet); the text names it."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What the downward API gives besides the pod object."""

    pod_ip: str
    host_ip: str


ConfigMaps = Callable[[str], Json | None]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` of known names; `$$` is a `$` that starts no reference."""

    def one(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else variables.get(name, found[0])

    return _REFERENCE.sub(one, text)


def field_value(path: str, pod: Json, facts: PodFacts) -> str:
    """Return the value of a downward API field.

    Raises:
        MissingReferenceError: this node does not support the field.
    """
    meta, spec = pod["metadata"], pod["spec"]
    if (found := _SUBSCRIPT.match(path)) is not None:
        return str((meta.get(found[1]) or {}).get(found[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        values = meta.get(path.partition(".")[2]) or {}
        return "\n".join(f'{name}="{_escaped(value)}"' for name, value in sorted(values.items()))
    simple: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: meta["name"],
        "metadata.namespace": lambda: meta["namespace"],
        "metadata.uid": lambda: meta["uid"],
        "spec.nodeName": lambda: spec.get("nodeName", ""),
        "spec.serviceAccountName": lambda: spec.get("serviceAccountName", "default"),
        "status.podIP": lambda: facts.pod_ip,
        "status.podIPs": lambda: facts.pod_ip,
        "status.hostIP": lambda: facts.host_ip,
        "status.hostIPs": lambda: facts.host_ip,
    }
    if (read := simple.get(path)) is None:
        raise MissingReferenceError(f"this node does not support the field {path}")
    return str(read())


def container_environment(
    container: Json, pod: Json, facts: PodFacts, config_maps: ConfigMaps, base: Mapping[str, str]
) -> dict[str, str]:
    """Return `base` with `envFrom` and then `env` laid over it; a later entry may use an earlier one.

    Raises:
        MissingReferenceError: something that is not optional is missing.
    """
    variables = dict(base)
    for source in container.get("envFrom") or ():
        variables.update(_all_of_config_map(source, config_maps))
    for entry in container.get("env") or ():
        if "valueFrom" not in entry:
            variables[entry["name"]] = expand(entry.get("value", ""), variables)
        elif (value := _from_source(entry["valueFrom"], pod, facts, config_maps)) is not None:
            variables[entry["name"]] = value
    return variables


def command_line(container: Json, entrypoint: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the container's argv: `command` replaces the image's entry point, `args` follow."""
    command = container.get("command")
    first = [expand(word, variables) for word in command] if command else list(entrypoint)
    return first + [expand(word, variables) for word in container.get("args") or ()]


def _from_source(source: Json, pod: Json, facts: PodFacts, config_maps: ConfigMaps) -> str | None:
    if (field := source.get("fieldRef")) is not None:
        return field_value(field["fieldPath"], pod, facts)
    reference = source.get("configMapKeyRef") or {}
    data = (config_maps(reference.get("name", "")) or {}).get("data") or {}
    if (value := data.get(reference.get("key", ""))) is not None:
        return str(value)
    if reference.get("optional"):
        return None
    raise MissingReferenceError(
        f'key "{reference.get("key")}" of configmap "{reference.get("name")}" not found'
    )


def _all_of_config_map(source: Json, config_maps: ConfigMaps) -> dict[str, str]:
    reference = source.get("configMapRef") or {}
    config_map = config_maps(reference.get("name", ""))
    if config_map is None and not reference.get("optional"):
        raise MissingReferenceError(f'configmap "{reference.get("name")}" not found')
    prefix = source.get("prefix", "")
    return {f"{prefix}{name}": value for name, value in ((config_map or {}).get("data") or {}).items()}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
