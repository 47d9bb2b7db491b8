"""context-length-aware: prefers, or keeps only, the servers labelled for prompts of this length."""

import re
from typing import ClassVar, Final

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.per_endpoint import PerEndpoint
from endpoint_picker.scheduling.plugin import Filter, PluginParams, Scorer

_RANGE: Final = re.compile(r"\s*(\d{1,15})\s*-\s*(\d{1,15})\s*")


class ContextLengthParams(PluginParams):
    """Parameters of context-length-aware."""

    label: str = Field(default="llm-d.ai/context-length-range", min_length=1)
    """Pod label whose value is a range of prompt lengths in tokens: "0-8192", both ends included."""
    enable_filtering: bool = False
    """True removes the servers whose range does not hold the prompt; those without the label stay."""


class ContextLengthAware(Filter, Scorer):
    """In range: 0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * (max - length) / width), 1 for no width.

    Out of range: 0.3 / (1 + distance / 1000). Without the label: 0.5. With a malformed one: 0. The length is
    estimated from the prompt's bytes.
    """

    __slots__ = ("_filtering", "_high", "_label", "_low")
    type_name = "context-length-aware"
    params_type = ContextLengthParams
    bounded: ClassVar[bool] = True

    def __init__(self, params: ContextLengthParams) -> None:
        self._label = params.label
        self._filtering = params.enable_filtering
        self._low = PerEndpoint(lambda endpoint: self._range(endpoint)[0])
        self._high = PerEndpoint(lambda endpoint: self._range(endpoint)[1])

    def _range(self, endpoint: Endpoint) -> tuple[float, float]:
        """Return both ends; NaN without the label, a range that nothing is in when it is malformed."""
        text = endpoint.labels.get(self._label)
        if text is None:
            return np.nan, np.nan
        found = _RANGE.fullmatch(text)
        low, high = (float(found[1]), float(found[2])) if found else (1.0, 0.0)
        return (low, high) if low <= high else (np.inf, -np.inf)

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows whose range holds the prompt's length and those without a range."""
        rows = candidates.rows
        if not self._filtering:
            return rows
        length = request.prompt_bytes // BYTES_PER_TOKEN
        low, high = self._low.column(table)[rows], self._high.column(table)[rows]
        return rows[~((length < low) | (length > high))]

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the score of each row by its range."""
        rows = candidates.rows
        length = request.prompt_bytes // BYTES_PER_TOKEN
        low, high = self._low.column(table)[rows], self._high.column(table)[rows]
        scores = np.full(rows.size, 0.5)
        scores[np.isinf(low)] = 0.0
        inside = (low <= length) & (length <= high)
        width = high[inside] - low[inside]
        room = np.divide(high[inside] - length, width, out=np.ones(width.size), where=width > 0)
        tight = np.where(width > 0, 0.7 / (1.0 + width / 10_000.0), 0.7)
        scores[inside] = 0.3 + 0.7 * (tight + 0.3 * room)
        outside = np.isfinite(low) & ~inside
        distance = np.maximum(low[outside] - length, length - high[outside])
        scores[outside] = 0.3 / (1.0 + distance / 1000.0)
        # Rounding can lift 0.3 + 0.7 above 1.
        bounded: Floats = np.minimum(scores, 1.0, out=scores)
        return bounded
