"""Mapping of a changed object to the pools whose passes depend on it. Pure."""

from inference_operator.core.cache import Cache, named_by
from inference_operator.core.kinds import PICKER, POOL, SERVICE, Kind, Object, PoolKey


def keys_of(kind: Kind, body: Object, cache: Cache) -> set[PoolKey]:
    """Return the keys of the pools that need a pass when this object changes.

    Call it before and after `Cache.put` or `Cache.drop`: the change may move the object from one pool to
    another.
    """
    metadata = body["metadata"]
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    held = cache.get(kind, namespace, name)
    versions = [body] if held is None else [body, held]
    if kind is POOL:
        pickers = {picker for version in versions for picker in named_by(kind, version)}
        return {(namespace, name)} | {key for picker in pickers for key in _naming(picker, namespace, cache)}
    if kind is PICKER:
        return {(namespace, name)}
    keys = {(namespace, pool) for version in versions for pool in named_by(kind, version)}
    if kind is SERVICE:
        keys |= _naming(name, namespace, cache)
    return keys


def _naming(picker: str, namespace: str, cache: Cache) -> set[PoolKey]:
    return {(namespace, body["metadata"]["name"]) for body in cache.naming(POOL, namespace, picker)}
