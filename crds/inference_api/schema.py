"""Turns an API type into the structural OpenAPI v3 schema that a CustomResourceDefinition needs. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

from inference_api.markers import SERVER_DEFAULT
from inference_api.meta import ApiType

Schema = dict[str, Any]

#: What pydantic writes for readers of JSON schema, and a structural schema may not hold or has no use for.
_DROPPED: Final = frozenset({"$defs", "$ref", "additionalProperties", "default", "title", SERVER_DEFAULT})


def structural_schema(kind: type[ApiType]) -> Schema:
    """Return the openAPIV3Schema of an object kind.

    References are written out, unions with None become optional fields, and only defaults marked with
    `markers.SERVER_DEFAULTED` stay. metadata is left to the API server, as the format demands.
    """
    raw = kind.model_json_schema(by_alias=True)
    properties = {
        **raw["properties"],
        "apiVersion": {"type": "string", "description": "Group and version of this object."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
    }
    schema = _structural({**raw, "properties": properties}, raw.get("$defs", {}))
    # Parts that are one object in memory would become anchors and aliases in YAML.
    written_out: Schema = json.loads(json.dumps(schema))
    return written_out


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    node = _resolve(node, definitions)
    result = {key: value for key, value in node.items() if key not in _DROPPED}
    if SERVER_DEFAULT in node:
        marked = node[SERVER_DEFAULT]
        result["default"] = node["default"] if marked is True else marked
    if "properties" in node:
        result["properties"] = {
            name: _structural(child, definitions) for name, child in sorted(node["properties"].items())
        }
    if "required" in node:
        result["required"] = sorted(node["required"])
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
    if isinstance(values := node.get("additionalProperties"), Mapping):
        result["additionalProperties"] = _structural(values, definitions)
    if node.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return dict(sorted(result.items()))


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a reference, or a union with null, by what it stands for; keywords beside it win."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].removeprefix("#/$defs/")]
            beside = {key: value for key, value in node.items() if key != "$ref"}
            node = {**target, **beside}
        elif len(one := [part for part in node.get("anyOf", ()) if part.get("type") != "null"]) == 1:
            beside = {key: value for key, value in node.items() if key != "anyOf"}
            node = {**one[0], **beside}
        else:
            return node
