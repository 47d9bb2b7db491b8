"""token-load-scorer: prefers the server with the fewest prompt tokens still to compute."""

from typing import ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import PluginParams, Scorer


class TokenLoadParams(PluginParams):
    """Parameters of token-load-scorer."""

    queue_threshold_tokens: int = Field(default=4_194_304, gt=0)
    """Tokens in flight that score 0."""


class TokenLoadScorer(Scorer):
    """1 - min(tokens in flight + uncached tokens of this request, threshold) / threshold."""

    __slots__ = ("_threshold",)
    type_name = "token-load-scorer"
    params_type = TokenLoadParams
    bounded: ClassVar[bool] = True
    consumes: ClassVar[frozenset[str]] = frozenset({PREFIX_MATCH})

    def __init__(self, params: TokenLoadParams) -> None:
        self._threshold = float(params.queue_threshold_tokens)

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the score of each row by its uncached tokens in flight, this request's included."""
        rows = candidates.rows
        uncached = (candidates.prompt_blocks - candidates.prefix_matched) * candidates.block_tokens
        load = np.minimum(table.inflight_tokens[rows] + uncached, self._threshold)
        return 1.0 - load / self._threshold
