"""Reads Kubernetes objects in their JSON form, of any content. Pure; nothing here raises."""

from collections.abc import Mapping
from typing import Any, TypeAlias

#: A Kubernetes object, or a part of one, as the API server sends it.
Object: TypeAlias = Mapping[str, Any]
#: (namespace, name); the namespace of a cluster-wide object is "".
ObjectKey: TypeAlias = tuple[str, str]


def key_of(item: Object) -> ObjectKey:
    """Return namespace and name, "" for what is missing."""
    metadata = mapping(item.get("metadata"))
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def version_of(item: Object) -> str:
    """Return the resourceVersion, "" when there is none. It is opaque: compare it for equality only."""
    return str(mapping(item.get("metadata")).get("resourceVersion") or "")


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """Return the value when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def strings(value: object) -> dict[str, str]:
    """Return an object of strings, as labels and annotations are; empty when the value is none."""
    return {str(key): str(each) for key, each in mapping(value).items()}
