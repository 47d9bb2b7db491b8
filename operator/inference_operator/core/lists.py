"""Keys of list items, by kind and path: how server-side apply tells the items of a list apart. Pure.

A list that is not in the table is one value (`x-kubernetes-list-type: atomic`): `ports` has keys in a Service
and is one value in a NetworkPolicy.
"""

from collections.abc import Mapping
from typing import Any, Final

from inference_operator.core.kinds import (
    DEPLOYMENT,
    OBJECTIVES,
    PICKER,
    POD,
    REWRITES,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)

#: Path of a list, as "spec.containers[].env" -> the fields that are the key of its items.
ListKeys = Mapping[str, tuple[str, ...]]

#: Lists of every kind.
_METADATA: Final[ListKeys] = {"metadata.ownerReferences": ("uid",)}
_CONDITIONS: Final[ListKeys] = {"status.conditions": ("type",)}
#: Lists in a container, by path from it.
_CONTAINER: Final[ListKeys] = {
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "resources.claims": ("name",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
}
#: Lists in a pod's spec, by path from it.
_POD: Final[ListKeys] = {
    "containers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "resourceClaims": ("name",),
    "resources.claims": ("name",),
    "schedulingGates": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumes": ("name",),
    **{f"containers[].{path}": keys for path, keys in _CONTAINER.items()},
    **{f"initContainers[].{path}": keys for path, keys in _CONTAINER.items()},
}
_BY_KIND: Final[Mapping[Kind, ListKeys]] = {
    POD: {f"spec.{path}": keys for path, keys in _POD.items()},
    SERVICE: {"spec.ports": ("port", "protocol")},
    SERVICE_ACCOUNT: {"secrets": ("name",)},
    DEPLOYMENT: {f"spec.template.spec.{path}": keys for path, keys in _POD.items()},
    PICKER: _CONDITIONS,
    **dict.fromkeys(OBJECTIVES, _CONDITIONS),
    **dict.fromkeys(REWRITES, _CONDITIONS),
}
_BY_TYPE: Final = {(kind.api_version, kind.kind): {**_METADATA, **keys} for kind, keys in _BY_KIND.items()}
_KEY_DEFAULTS: Final = {"protocol": "TCP"}


def list_keys(body: Object) -> ListKeys:
    """Return the keys of the lists in an object, by its apiVersion and kind."""
    return _BY_TYPE.get((str(body.get("apiVersion")), str(body.get("kind"))), _METADATA)


def key_of(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the item's values of these fields, defaults filled in."""
    return tuple(item.get(key, _KEY_DEFAULTS.get(key)) for key in keys)
