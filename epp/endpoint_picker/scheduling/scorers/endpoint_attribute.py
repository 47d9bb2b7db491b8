"""endpoint-attribute-scorer: scores an attribute of endpoints by its place in a range."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.attribute_source import DEFAULT_PRODUCER, attribute_fault
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Plugin, PluginParams, Scorer


class FixedRange(PluginParams):
    """A range that does not depend on the candidates."""

    min: float
    """Value of one end."""
    max: float
    """Value of the other end, above min."""

    @model_validator(mode="after")
    def _not_empty(self) -> "FixedRange":
        if self.max <= self.min:
            raise ValueError("max must be above min")
        return self


class AdaptiveRange(PluginParams):
    """From the least to the largest value among the candidates."""


class Normalization(PluginParams):
    """The range in which the attribute is placed."""

    fixed_range: FixedRange | None = None
    """From min to max; values outside count as the nearer end."""
    adaptive_range: AdaptiveRange | None = None
    """From the candidates' least value to their largest, as without any of the two."""

    @model_validator(mode="after")
    def _one(self) -> "Normalization":
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("give fixedRange or adaptiveRange, not both")
        return self


class ScorerAlgorithm(PluginParams):
    """How the attribute becomes a score."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """Which end of the range scores 1."""
    normalization: Normalization = Normalization()
    """The range."""


class AttributeScorerParams(PluginParams):
    """Parameters of endpoint-attribute-scorer."""

    attribute_key: str = Field(min_length=1)
    """Attribute of endpoints, such as an attributeKey of customMetrics."""
    producer: str = Field(default=DEFAULT_PRODUCER, min_length=1)
    """Name of the plugin that writes the attribute."""
    algorithm: ScorerAlgorithm
    """How the attribute becomes a score."""


class EndpointAttributeScorer(Scorer):
    """The attribute's place in the range, or 1 minus it; unknown: 0. A range of no width scores 1.

    An attribute older than 2 s is unknown.
    """

    __slots__ = ("_key", "_lower", "_range")
    type_name = "endpoint-attribute-scorer"
    params_type = AttributeScorerParams
    bounded: ClassVar[bool] = True

    def __init__(self, params: AttributeScorerParams) -> None:
        self._key = (params.producer, params.attribute_key)
        self._lower = params.algorithm.type == "linear_lower_is_better"
        self._range = params.algorithm.normalization.fixed_range

    @override
    def fault_among(self, plugins: Mapping[str, Plugin], profiles: Sequence[str]) -> str:
        """Demand a plugin that writes the attribute."""
        return attribute_fault(self._key, plugins)

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the score of each row by its attribute."""
        values = table.attributes.column(self._key)[candidates.rows]
        known = ~np.isnan(values)
        scores = np.zeros(values.size)
        if not known.any():
            return scores
        if self._range is None:
            low, high = float(values[known].min()), float(values[known].max())
        else:
            low, high = self._range.min, self._range.max
        if high <= low:
            scores[known] = 1.0
            return scores
        # By halves: the width of a range from -1e308 to 1e308 is no float.
        half = np.clip(values[known], low, high) / 2 - low / 2
        place = np.clip(half / (high / 2 - low / 2), 0.0, 1.0)
        scores[known] = 1.0 - place if self._lower else place
        return scores
