"""The latest version of each object that a watch or a list has shown, by kind.

Pure bookkeeping; callers put events and full lists in, nothing is fetched here. A full list replaces all
objects of its kind, because a watch that was interrupted does not report what was deleted meanwhile. An older
version never replaces a newer one, by event or by list. An index finds the objects of one pool, so that the
cost of a pass does not grow with its namespace.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from inference_api.names import POOL_GROUP
from inference_operator.core.kinds import OBJECTIVES, POOL, REWRITES, Kind, Object
from inference_operator.core.naming import pool_of

ObjectKey = tuple[str, str]


def object_key(body: Object) -> ObjectKey:
    """Return namespace and name."""
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def resource_version(body: Object) -> int:
    """Return the version as a number; 0 when it has none."""
    text = body.get("metadata", {}).get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


def named_by(kind: Kind, body: Object) -> frozenset[str]:
    """Return the names under which `Cache.naming` finds the object.

    For a pool, the picker that it names. For an objective or a rewrite, its pool. For any other object, the
    pool that it was made for, by annotation and by ownerReferences.
    """
    if kind is POOL:
        return _names(_mapping(_mapping(body.get("spec")).get("endpointPickerRef")).get("name"))
    if kind in OBJECTIVES or kind in REWRITES:
        ref = _mapping(_mapping(body.get("spec")).get("poolRef"))
        return _names(ref.get("name")) if ref.get("group", POOL_GROUP) == POOL_GROUP else frozenset()
    owners = body["metadata"].get("ownerReferences") or ()
    return _names(pool_of(body), *(each.get("name") for each in owners if each.get("kind") == POOL.kind))


def _mapping(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _names(*values: object) -> frozenset[str]:
    return frozenset(value for value in values if isinstance(value, str) and value)


class Cache:
    """Objects by kind, namespace and name."""

    __slots__ = ("_deleted", "_index", "_objects", "synced")

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[ObjectKey, Object]] = {}
        # By kind: (namespace, a name that `named_by` returns) -> keys of objects.
        self._index: defaultdict[Kind, defaultdict[ObjectKey, set[ObjectKey]]]
        self._index = defaultdict(lambda: defaultdict(set))
        # Versions of deletions since the last full list: a list or event older than one must not bring it
        # back.
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

    def naming(self, kind: Kind, namespace: str, name: str) -> list[Object]:
        """Return the objects of the kind that name this pool or picker, as `named_by` says; in no order."""
        held = self._objects.get(kind, {})
        return [held[key] for key in self._index[kind].get((namespace, name), ())]

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
        self._unindex(kind, key, before)
        held[key] = body
        self._reindex(kind, key, body)
        return True

    def drop(self, kind: Kind, body: Object) -> bool:
        """Drop an object that was deleted or no longer matches the watch; return whether that is news.

        It is news also when the object was not held: the answer to the write that made it may come later than
        the event of its deletion, and is refused then. Nothing else would say that it is missing.
        """
        key = object_key(body)
        version = resource_version(body)
        held = self._objects.setdefault(kind, {})
        before = held.get(key)
        if before is not None and resource_version(before) > version:
            return False
        known = self._deleted.setdefault(kind, {})
        if before is None and known.get(key, -1) >= version:
            return False
        known[key] = version
        self._unindex(kind, key, before)
        held.pop(key, None)
        return True

    def forget(self, kind: Kind, namespace: str, name: str) -> None:
        """Drop an object that the operator itself has deleted."""
        key = namespace, name
        self._unindex(kind, key, self._objects.get(kind, {}).pop(key, None))

    def replace(self, kind: Kind, bodies: Iterable[Object], version: int) -> set[ObjectKey]:
        """Hold exactly this list, read at that version, and the held objects that are newer.

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
        self._index.pop(kind, None)
        for key, body in new.items():
            self._reindex(kind, key, body)
        self.synced.add(kind)
        return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}

    def clear(self, kind: Kind) -> None:
        """Drop all objects of a kind that is no longer served or readable."""
        self._objects.pop(kind, None)
        self._index.pop(kind, None)
        self._deleted.pop(kind, None)
        self.synced.discard(kind)

    def _reindex(self, kind: Kind, key: ObjectKey, body: Object) -> None:
        for name in named_by(kind, body):
            self._index[kind][key[0], name].add(key)

    def _unindex(self, kind: Kind, key: ObjectKey, body: Object | None) -> None:
        if body is None:
            return
        index = self._index[kind]
        for name in named_by(kind, body):
            mark = key[0], name
            index[mark].discard(key)
            if not index[mark]:
                del index[mark]
