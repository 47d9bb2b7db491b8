"""prefix-cache-scorer: prefers the server that has computed most of the prompt already."""

from typing import ClassVar, Final

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import PrefixConsumerParams, Scorer

#: Block counts as arrays of no dimension, each made on first use: numpy divides by a Python int in twice the
#: time. A prompt has at most `kv_index.MAX_BLOCKS`, which bounds it.
_COUNTS: Final[dict[int, Floats]] = {}


class PrefixCacheParams(PrefixConsumerParams):
    """Parameters of prefix-cache-scorer."""

    match_length_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the score that goes by the length of the match rather than by its part of the prompt."""
    match_length_scale_tokens: int = Field(default=8192, gt=0)
    """Match length, tokens, that is worth the full share."""


class PrefixCacheScorer(Scorer):
    """w * min(1, match / scale)^2 + (1 - w) * match / total; 0 for a prompt of no full block."""

    __slots__ = ("_scale", "_weight")
    type_name = "prefix-cache-scorer"
    params_type = PrefixCacheParams
    bounded: ClassVar[bool] = True
    consumes: ClassVar[frozenset[str]] = frozenset({PREFIX_MATCH})

    def __init__(self, params: PrefixCacheParams) -> None:
        self._weight = params.match_length_weight
        self._scale = float(params.match_length_scale_tokens)

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the believed cached part of the prompt on each row."""
        matched, blocks = candidates.prefix_matched, candidates.prompt_blocks
        if not blocks:
            return np.zeros(candidates.rows.size)
        count = _COUNTS.get(blocks)
        if count is None:
            count = _COUNTS[blocks] = np.array(float(blocks))
        ratio: Floats = matched / count
        if not self._weight:
            return ratio
        length = np.minimum(1.0, matched * (candidates.block_tokens / self._scale))
        return self._weight * length * length + (1.0 - self._weight) * ratio
