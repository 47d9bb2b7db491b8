"""Difference between a live object and its intent. Pure.

Drift is one of two things: the intent is not a subset of the live object, or the operator owns a field, by
managedFields, that the intent no longer names. Fields that other managers add are no drift.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from inference_operator.core.kinds import Object
from inference_operator.core.lists import ListKeys, key_of, list_keys
from inference_operator.core.quantities import same_quantity

_QUANTITY_FIELDS: Final = frozenset({"limits", "requests"})


def drift(intent: Object, live: Object, manager: str, subresource: str = "") -> str | None:
    """Return the path of the first field that has to be applied again, or None when there is none."""
    lists = list_keys(intent)
    for part in intent:
        if part in {"apiVersion", "kind"}:
            continue
        if path := _missing(intent[part], live.get(part), part, part, lists):
            return path
    owned = owned_fields(live, manager, subresource)
    return _left(owned, intent, "") if owned else None


def owned_fields(live: Object, manager: str, subresource: str = "") -> Mapping[str, Any]:
    """Return the fieldsV1 set that the manager owns through server-side apply; empty when it owns none."""
    for entry in live.get("metadata", {}).get("managedFields", ()):
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and entry.get("subresource", "") == subresource
        ):
            fields: Mapping[str, Any] = entry.get("fieldsV1", {})
            return fields
    return {}


def as_applied(live: Object, manager: str) -> list[Object] | None:
    """Return the managedFields with the manager's Update entries merged into its Apply entry.

    None when it has no Update entry. A POST and a JSON patch leave one. No apply removes the fields that an
    Update entry owns, so a field that leaves the intent would stay for ever.
    """
    entries: list[Object] = list(live.get("metadata", {}).get("managedFields", ()))
    mine = [
        entry
        for entry in entries
        if entry.get("manager") == manager
        and entry.get("operation") in {"Apply", "Update"}
        and not entry.get("subresource")
    ]
    if all(entry["operation"] == "Apply" for entry in mine):
        return None
    fields: Mapping[str, Any] = {}
    for entry in mine:
        fields = _union(fields, entry.get("fieldsV1", {}))
    return [
        *(entry for entry in entries if entry not in mine),
        {**mine[0], "operation": "Apply", "fieldsV1": fields},
    ]


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields that either set names."""
    return {key: _union(one.get(key, {}), other.get(key, {})) for key in dict.fromkeys((*one, *other))}


def _missing(want: Any, have: Any, path: str, place: str, lists: ListKeys) -> str | None:
    """Return the path of the first wanted field that is missing; `place` is the path without indexes."""
    if isinstance(want, Mapping):
        if have is None and not want:
            return None
        if not isinstance(have, Mapping):
            return path
        quantities = place.rpartition(".")[2] in _QUANTITY_FIELDS
        for key, value in want.items():
            where = f"{path}.{key}"
            if quantities and isinstance(value, str | int | float):
                if key not in have or not same_quantity(value, have[key]):
                    return where
            elif found := _missing(value, have.get(key), where, f"{place}.{key}", lists):
                return found
        return None
    if isinstance(want, list | tuple):
        return _missing_items(want, have, path, place, lists)
    return None if want == have else path


def _missing_items(want: Sequence[Any], have: Any, path: str, place: str, lists: ListKeys) -> str | None:
    if not isinstance(have, list | tuple):
        return path if want or have is not None else None
    keys = lists.get(place)
    below = f"{place}[]"
    if keys is None:
        if len(want) != len(have):
            return path
        pairs = enumerate(zip(want, have, strict=True))
        return next(
            (found for i, (w, h) in pairs if (found := _missing(w, h, f"{path}[{i}]", below, lists))), None
        )
    by_key = {key_of(item, keys): item for item in have}
    for item in want:
        key = key_of(item, keys)
        where = f"{path}[{key[0]}]"
        if key not in by_key:
            return where
        if found := _missing(item, by_key[key], where, below, lists):
            return found
    return None


def _left(owned: Mapping[str, Any], intent: Any, path: str) -> str | None:
    """Return the first owned field that the intent does not name."""
    for mark, below in owned.items():
        kind, _, rest = mark.partition(":")
        if kind == "f":
            where = f"{path}.{rest}" if path else rest
            if not isinstance(intent, Mapping) or rest not in intent:
                return where
            if below and (found := _left(below, intent[rest], where)):
                return found
        elif kind == "k":
            item = _matching(intent, json.loads(rest))
            if item is None:
                return f"{path}[{rest}]"
            if below and (found := _left(below, item, f"{path}[{rest}]")):
                return found
        elif kind == "v" and (not isinstance(intent, list | tuple) or json.loads(rest) not in intent):
            return f"{path}[{rest}]"
    return None


def _matching(items: Any, key: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not isinstance(items, list | tuple):
        return None
    names, values = tuple(key), tuple(key.values())
    return next((each for each in items if isinstance(each, Mapping) and key_of(each, names) == values), None)
