"""Which objective and which priority a request has. Pure.

The header names the objective. A request without one has its model's objective, else the default one.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from endpoint_picker.request import ASKED_MODEL, InferenceRequest

#: Attribute of a request whose objective no header named: the `Source` of it.
OBJECTIVE_SOURCE: Final = "objective-source"

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Source(StrEnum):
    """Where the name of a request's objective comes from."""

    HEADER = "header"
    MODEL = "model"
    DEFAULT = "default"


class Objectives:
    """The objectives of a pool, and which requests without a header have which."""

    __slots__ = ("_by_model", "_default", "known", "priorities")

    def __init__(
        self,
        priorities: Mapping[str, int],
        by_model: Mapping[str, str] = _NOTHING,
        default: str = "",
    ) -> None:
        """`priorities` are by objective; `default`, "" for none, is that of requests with no other."""
        self.priorities = priorities
        self._by_model = by_model
        self._default = default
        self.known: Mapping[str, int] = priorities if by_model or default else {**priorities, "": 0}
        """Priority by the name in the header, for those names that need no call of `name`."""

    def name(self, request: InferenceRequest) -> Source:
        """Give a request that names no objective its model's or the default one; return the source."""
        attributes = request.attributes
        if request.objective and OBJECTIVE_SOURCE not in attributes:
            return Source.HEADER
        name = self._by_model.get(attributes.get(ASKED_MODEL, request.model), "")
        source = Source.MODEL if name else Source.DEFAULT
        request.objective = name or self._default
        attributes[OBJECTIVE_SOURCE] = source
        return source

    def priority_of(self, request: InferenceRequest) -> int:
        """Return the request's priority, 0 when its objective is unknown; name its objective."""
        self.name(request)
        return self.priorities.get(request.objective, 0)
