"""The objects of one collection, kept from its lists and watch events. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from cluster_client.objects import ObjectKey

T = TypeVar("T")

#: Statuses of a refused watch after which only a new list helps: the version is malformed (400), the kind was
#: not served for a while (404), the version is too old (410), or newer than a restored backup (504).
_LIST_AGAIN: Final = frozenset({400, 404, 410, 504})


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object that appeared (`before` is None), changed, or disappeared (`after` is None)."""

    key: ObjectKey
    before: T | None
    after: T | None


class Collection(Generic[T]):
    """The known objects. A value equal to the known one is no change."""

    __slots__ = ("objects",)

    def __init__(self, known: Mapping[ObjectKey, T] | None = None) -> None:
        self.objects: dict[ObjectKey, T] = dict(known or {})

    def replace(self, found: dict[ObjectKey, T]) -> list[Change[T]]:
        """Hold exactly this list; objects that it lacks were deleted since the last event."""
        old, self.objects = self.objects, found
        changes = [Change(key, value, None) for key, value in old.items() if key not in found]
        changes += [Change(key, old.get(key), value) for key, value in found.items() if old.get(key) != value]
        return changes

    def put(self, key: ObjectKey, value: T | None) -> list[Change[T]]:
        """Hold this value of the object; None removes it."""
        before = self.objects.get(key)
        if value is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = value
        return [] if before == value else [Change(key, before, value)]


def lists_again(status: int) -> bool:
    """Return whether a new list is needed after a watch was refused with this status."""
    return status in _LIST_AGAIN
