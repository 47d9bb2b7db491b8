"""Fields of a live object that make the API server refuse an intent, and the JSON patch against them. Pure.

Server-side apply adds and changes only the fields that it names. A field of another manager stays. Where it
excludes a field of the intent, or has the name of another list item, the API server refuses every apply.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from inference_operator.core.kinds import ROLE_BINDING, Object
from inference_operator.core.lists import ListKeys, key_of, list_keys

_HANDLERS: Final = frozenset({"exec", "grpc", "httpGet", "tcpSocket", "sleep"})
#: Fields of which at most one may be set, by the name of the field that holds them.
_UNIONS: Final[Mapping[str, frozenset[str]]] = {
    "livenessProbe": _HANDLERS,
    "readinessProbe": _HANDLERS,
    "startupProbe": _HANDLERS,
    "postStart": _HANDLERS,
    "preStop": _HANDLERS,
    "env[]": frozenset({"value", "valueFrom"}),
    "valueFrom": frozenset({"configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"}),
}
#: Field that only one value of `type` admits, and that value, by the name of the field that holds both.
_ONLY_WITH_TYPE: Final[Mapping[str, tuple[str, str]]] = {
    "strategy": ("rollingUpdate", "RollingUpdate"),
    "seccompProfile": ("localhostProfile", "Localhost"),
}
#: Immutable top-level fields, by kind.
_REPLACED: Final[Mapping[str, frozenset[str]]] = {ROLE_BINDING.kind: frozenset({"roleRef"})}


def obstacles(intent: Object, live: Object) -> list[Object]:
    """Return the steps of a JSON patch after which the intent can be applied; empty if none are needed."""
    steps: list[Object] = []
    _walk(intent.get("spec"), live.get("spec"), "spec", "/spec", list_keys(intent), steps)
    return steps


def must_be_replaced(intent: Object, live: Object) -> bool:
    """Return whether the intent changes an immutable field, so that the object must be deleted and made anew.

    Only for kinds that may be missing for a moment. Deleting a Deployment would delete its pods.
    """
    return any(
        part in intent and intent[part] != live.get(part) for part in _REPLACED.get(str(intent["kind"]), ())
    )


def _walk(want: Any, have: Any, place: str, pointer: str, lists: ListKeys, steps: list[Object]) -> None:
    """Add the steps for one field; `place` is its path without indexes, `pointer` its JSON pointer."""
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        if stray := _stray(want, have, place.rpartition(".")[2]):
            kept = {key: value for key, value in have.items() if key not in stray}
            steps.append({"op": "replace", "path": pointer, "value": {**kept, **want}})
            return
        for key, value in want.items():
            _walk(value, have.get(key), f"{place}.{key}", f"{pointer}/{_escaped(key)}", lists, steps)
    elif isinstance(want, list | tuple) and isinstance(have, list | tuple) and place in lists:
        _walk_items(want, have, place, pointer, lists, steps)


def _walk_items(
    want: Sequence[Any], have: Sequence[Any], place: str, pointer: str, lists: ListKeys, steps: list[Object]
) -> None:
    keys = lists[place]
    wanted = {key_of(item, keys): item for item in want}
    if place.endswith(".ports"):
        names = {item.get("name"): key for key, item in wanted.items()}
        kept = [
            item for item in have if names.get(item.get("name"), key_of(item, keys)) == key_of(item, keys)
        ]
        if len(kept) < len(have):
            held = {key_of(item, keys) for item in kept}
            added = [item for key, item in wanted.items() if key not in held]
            steps.append({"op": "replace", "path": pointer, "value": [*kept, *added]})
        return
    for index, item in enumerate(have):
        if (mine := wanted.get(key_of(item, keys))) is not None:
            _walk(mine, item, f"{place}[]", f"{pointer}/{index}", lists, steps)


def _stray(want: Mapping[str, Any], have: Mapping[str, Any], field: str) -> frozenset[str]:
    """Return the fields of `have` that exclude fields of `want`."""
    if field in _ONLY_WITH_TYPE:
        member, kind = _ONLY_WITH_TYPE[field]
        return frozenset({member} & have.keys() if want.get("type", kind) != kind else ())
    members = _UNIONS.get(field, frozenset())
    if field == "volumes[]":  # every field but the name is a volume source, and one is allowed
        members = frozenset(have.keys() | want.keys()) - {"name"}
    return members & (have.keys() - want.keys()) if members & want.keys() else frozenset()


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
