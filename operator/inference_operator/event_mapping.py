"""Which pools an object concerns. Pure."""

from inference_api.names import POOL_GROUP
from inference_operator.cache import Cache
from inference_operator.kinds import OBJECTIVES, PICKER, POOL, SERVICE, Kind, Object, PoolKey
from inference_operator.naming import pool_of


def keys_of(kind: Kind, body: Object, cache: Cache) -> set[PoolKey]:
    """Return the keys of the pools that have to be looked at when this object changes.

    Call it before and after the cache has taken the change in, for an object may have moved between pools.
    """
    metadata = body["metadata"]
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    held = cache.get(kind, namespace, name)
    versions = [body] if held is None else [body, held]
    if kind is POOL:
        pickers = {_picker_name(version) for version in versions}
        return {(namespace, name)} | {key for picker in pickers for key in _naming(picker, namespace, cache)}
    if kind is PICKER:
        return {(namespace, name)}
    if kind in OBJECTIVES:
        return {(namespace, pool) for version in versions if (pool := _objective_pool(version))}
    keys = {(namespace, pool) for version in versions if (pool := pool_of(version))}
    if kind is SERVICE:
        keys |= _naming(name, namespace, cache)
    return keys


def _naming(picker: str, namespace: str, cache: Cache) -> set[PoolKey]:
    return {
        (namespace, body["metadata"]["name"])
        for body in cache.all(POOL, namespace)
        if picker and _picker_name(body) == picker
    }


def _picker_name(pool: Object) -> str:
    return str((pool.get("spec", {}).get("endpointPickerRef") or {}).get("name", ""))


def _objective_pool(objective: Object) -> str:
    ref = objective.get("spec", {}).get("poolRef") or {}
    return str(ref.get("name", "")) if ref.get("group", POOL_GROUP) == POOL_GROUP else ""
