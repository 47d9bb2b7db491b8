"""Annotations for the parts of a CRD schema that Python's types cannot express.

They describe what the API server enforces. Reading stays lenient: an object that the server once admitted
must stay readable, also when a newer CRD admits more than these types know.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import GetJsonSchemaHandler, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

#: Marks a default that the API server fills in: True, or the value where it differs from Python's default.
SERVER_DEFAULT: Final = "x-server-default"


class Schema:
    """JSON-schema keywords of a type or field, used inside `Annotated`; not validated on reading."""

    __slots__ = ("_keywords",)

    def __init__(self, **keywords: Any) -> None:
        self._keywords: Mapping[str, Any] = {name.rstrip("_"): value for name, value in keywords.items()}

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(core_schema), **self._keywords}


#: Lets the API server fill in the field's default. Only for upstream's kinds, whose schemas have defaults.
SERVER_DEFAULTED: Final = Schema(**{SERVER_DEFAULT: True})


def server_default(value: list[Any]) -> Schema:
    """Let the API server fill in `value`, which differs from the reader's default."""
    return Schema(**{SERVER_DEFAULT: value})


def list_of(kind: str, *map_keys: str, **keywords: Any) -> Schema:
    """Say how server-side apply merges a list: "atomic", "set" or "map" (with its keys)."""
    marks: dict[str, Any] = {"x-kubernetes-list-type": kind}
    if map_keys:
        marks["x-kubernetes-list-map-keys"] = list(map_keys)
    return Schema(**marks, **keywords)


def rules(*pairs: tuple[str, str]) -> list[JsonValue]:
    """Return x-kubernetes-validations from pairs of CEL rule and the message a user gets."""
    return [{"message": message, "rule": rule} for rule, message in pairs]
