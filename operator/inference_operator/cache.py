"""What the watches have seen: the latest version of each object, by kind.

Pure bookkeeping; events and full lists are put in, nothing is fetched here. A full list replaces what is held
of its kind, because a watch that was interrupted never tells what was deleted meanwhile. An older version
never replaces a newer one, whichever way it comes.
"""

from collections.abc import Iterable, Iterator

from inference_operator.kinds import Kind, Object

ObjectKey = tuple[str, str]


def object_key(body: Object) -> ObjectKey:
    """Return namespace and name."""
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def resource_version(body: Object) -> int:
    """Return the version as a number; 0 when it has none."""
    text = body.get("metadata", {}).get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


class Cache:
    """Objects by kind, namespace and name."""

    __slots__ = ("_deleted", "_objects", "synced")

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[ObjectKey, Object]] = {}
        # Deletions since the last full list: a list that was read before one must not bring it back.
        self._deleted: dict[Kind, dict[ObjectKey, int]] = {}
        self.synced: set[Kind] = set()
        """Kinds of which a full list has been seen."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the object, or None when it is not known."""
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: Kind, namespace: str | None = None) -> Iterator[Object]:
        """Yield all objects of the kind, or those of one namespace."""
        for (space, _), body in self._objects.get(kind, {}).items():
            if namespace is None or space == namespace:
                yield body

    def put(self, kind: Kind, body: Object) -> bool:
        """Hold this version unless a newer one is held; return whether it was news."""
        key = object_key(body)
        version = resource_version(body)
        held = self._objects.setdefault(kind, {})
        before = held.get(key)
        if before is not None and resource_version(before) >= version:
            return False
        if self._deleted.get(kind, {}).get(key, -1) >= version:
            return False
        held[key] = body
        return True

    def drop(self, kind: Kind, body: Object) -> bool:
        """The object was deleted, or no longer matches the watch; return whether it was held."""
        key = object_key(body)
        version = resource_version(body)
        held = self._objects.setdefault(kind, {})
        before = held.get(key)
        if before is not None and resource_version(before) > version:
            return False
        self._deleted.setdefault(kind, {})[key] = version
        return held.pop(key, None) is not None

    def forget(self, kind: Kind, namespace: str, name: str) -> None:
        """Drop what is held of an object that the API server says is not there."""
        self._objects.get(kind, {}).pop((namespace, name), None)

    def replace(self, kind: Kind, bodies: Iterable[Object], version: int) -> set[ObjectKey]:
        """Hold exactly this list, read at that version, and what is known to be newer.

        Returns the keys of all objects that appeared, changed or went.
        """
        old = self._objects.get(kind, {})
        deleted = self._deleted.pop(kind, {})
        new: dict[ObjectKey, Object] = {}
        for body in bodies:
            key = object_key(body)
            if deleted.get(key, -1) >= resource_version(body):
                continue
            new[key] = body
        for key, body in old.items():
            listed = new.get(key)
            newer = resource_version(body)
            if newer > (version if listed is None else resource_version(listed)):
                new[key] = body
        self._objects[kind] = new
        self.synced.add(kind)
        return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}

    def clear(self, kind: Kind) -> None:
        """The kind is no longer served or readable: hold nothing of it."""
        self._objects.pop(kind, None)
        self._deleted.pop(kind, None)
        self.synced.discard(kind)
