"""Reading Kubernetes objects in their JSON form: the few accesses that several modules make. Pure."""

import datetime
from typing import Any, TypeAlias

#: A Kubernetes object, or a part of one, as the API server sends it.
Json: TypeAlias = dict[str, Any]
#: (namespace, name)
Key: TypeAlias = tuple[str, str]


def key_of(item: Json) -> Key:
    """Return namespace ("" if it has none) and name."""
    meta = item["metadata"]
    return meta.get("namespace", ""), meta["name"]


def uid_of(item: Json) -> str:
    """Return the uid."""
    return str(item["metadata"]["uid"])


def is_deleting(item: Json) -> bool:
    """Return whether its deletion has been asked for."""
    return "deletionTimestamp" in item["metadata"]


def has_labels(item: Json, selector: dict[str, str]) -> bool:
    """Return whether the object carries every label of an equality selector."""
    labels = item["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.items())


def timestamp(at: datetime.datetime) -> str:
    """Return the form that the API has times in."""
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition_is_true(item: Json, kind: str) -> bool:
    """Return whether status.conditions holds `kind` with the status True."""
    conditions = item.get("status", {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)
