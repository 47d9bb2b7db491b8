"""endpoint-attribute-filter: keeps the endpoints whose attribute compares as demanded."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.attribute_source import DEFAULT_PRODUCER, attribute_fault
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter, Plugin, PluginParams

_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


class Threshold(PluginParams):
    """A comparison of the attribute."""

    operator: Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]
    """How the attribute has to compare with the value for an endpoint to stay."""
    value: float
    """The value."""


class FilterAlgorithm(PluginParams):
    """How the filter decides."""

    type: Literal["threshold"]
    """The only algorithm."""
    threshold: Threshold
    """Its comparison."""


class AttributeFilterParams(PluginParams):
    """Parameters of endpoint-attribute-filter."""

    attribute: str = Field(min_length=1)
    """Attribute of endpoints, such as an attributeKey of customMetrics."""
    producer: str = Field(default=DEFAULT_PRODUCER, min_length=1)
    """Name of the plugin that writes the attribute."""
    algorithm: FilterAlgorithm
    """How the filter decides."""
    on_missing: Literal["Pass", "Fail"] = "Pass"
    """What becomes of an endpoint whose attribute is unknown."""
    fallback_on_empty: bool = False
    """True keeps all candidates where none would stay; false leaves none (503)."""


class EndpointAttributeFilter(Filter):
    """Keeps the endpoints whose attribute meets the comparison; older than 2 s it is unknown."""

    __slots__ = ("_compare", "_fallback", "_key", "_pass_missing", "_value")
    type_name = "endpoint-attribute-filter"
    params_type = AttributeFilterParams

    def __init__(self, params: AttributeFilterParams) -> None:
        threshold = params.algorithm.threshold
        self._compare = _COMPARE[threshold.operator]
        self._value = threshold.value
        self._key = (params.producer, params.attribute)
        self._pass_missing = params.on_missing == "Pass"
        self._fallback = params.fallback_on_empty

    @override
    def fault_among(self, plugins: Mapping[str, Plugin], profiles: Sequence[str]) -> str:
        """Demand a plugin that writes the attribute."""
        return attribute_fault(self._key, plugins)

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows whose attribute meets the comparison."""
        rows = candidates.rows
        values = table.attributes.column(self._key)[rows]
        stay = np.where(np.isnan(values), self._pass_missing, self._compare(values, self._value))
        kept: Rows = rows[stay]
        return rows if self._fallback and not kept.size else kept
