"""The table of lists with keys agrees with the API server's own schemas."""

import re
from collections.abc import Iterator
from typing import Any

from inference_operator.core.kinds import DEPLOYMENT, POD, SERVICE, SERVICE_ACCOUNT, Kind
from inference_operator.core.lists import list_keys
from operator_cluster import Cluster

#: Parts that the operator never writes, and metadata, which every kind has.
LEFT_OUT = re.compile(r"^status\.|(^|\.)metadata\.|\.ephemeralContainers|\.volumeClaimTemplate\.")

Found = Iterator[tuple[str, tuple[str, ...]]]


def lists(schemas: dict[str, Any], schema: dict[str, Any], path: str) -> Found:
    """Yield every list below the schema with its keys, empty for a list that is one value."""
    if "allOf" in schema:
        schema = {**schema, **schema["allOf"][0]}
    if "$ref" in schema:
        schema = {**schema, **schemas[schema["$ref"].rpartition("/")[2]]}
    for name, each in schema.get("properties", {}).items():
        yield from lists(schemas, each, f"{path}.{name}" if path else name)
    if schema.get("type") == "array":
        keyed = schema.get("x-kubernetes-list-type") == "map"
        yield path, tuple(schema["x-kubernetes-list-map-keys"]) if keyed else ()
        yield from lists(schemas, schema["items"], f"{path}[]")


def served(cluster: Cluster, kind: Kind) -> dict[str, tuple[str, ...]]:
    """Return the lists with keys in a kind, as the API server describes them."""
    root = kind.path().rsplit("/", 1)[0]
    schemas = cluster.api.get(f"/openapi/v3{root}").body["components"]["schemas"]
    mark = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    schema = next(
        each for each in schemas.values() if mark in each.get("x-kubernetes-group-version-kind", ())
    )
    return {path: keys for path, keys in lists(schemas, schema, "") if keys and not LEFT_OUT.search(path)}


def test_the_keys_of_lists_are_those_of_the_api_server(cluster: Cluster) -> None:
    for kind in (SERVICE, SERVICE_ACCOUNT, DEPLOYMENT, POD):
        known = list_keys({"apiVersion": kind.api_version, "kind": kind.kind})
        assert {path: keys for path, keys in known.items() if not LEFT_OUT.search(path)} == served(
            cluster, kind
        )
