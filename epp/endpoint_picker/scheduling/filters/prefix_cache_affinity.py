"""prefix-cache-affinity-filter: keeps the servers that hold the prompt, unless they are too busy."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import LATENCY_PREDICTION, PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import Filter, PluginParams, Pool, RandomSource


class PrefixCacheAffinityParams(PluginParams):
    """Parameters of prefix-cache-affinity-filter."""

    affinity_threshold: float = Field(default=0.8, ge=0.0, le=1.0)
    """Matched part of the prompt from which a server is sticky; 0 turns the filter off."""
    exploration_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    """Part of the requests that keep all candidates."""
    max_ttft_penalty_ms: float = Field(default=18_000.0, ge=0.0, alias="maxTTFTPenaltyMs")
    """Milliseconds to the first token that a sticky server may cost more; 0 sets no limit."""
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    """The time to the first token: tokens in flight over peakPrefillThroughput, or as predicted."""
    peak_prefill_throughput: float = Field(default=15_928.0, gt=0.0)
    """Prompt tokens that a server computes in a second."""


class PrefixCacheAffinityFilter(Filter):
    """Keeps the sticky servers; all where none is sticky or the best sticky one is too far behind."""

    __slots__ = ("_explore", "_limit_s", "_limit_tokens", "_predicted", "_rng", "_threshold")
    type_name = "prefix-cache-affinity-filter"
    params_type = PrefixCacheAffinityParams
    consumes = frozenset({PREFIX_MATCH})

    def __init__(self, params: PrefixCacheAffinityParams) -> None:
        self._threshold = params.affinity_threshold
        self._explore = params.exploration_probability
        # Comparing tokens saves turning each server's tokens into milliseconds.
        self._limit_tokens = params.max_ttft_penalty_ms * params.peak_prefill_throughput / 1000.0
        self._limit_s = params.max_ttft_penalty_ms / 1000.0
        self._predicted = params.ttft_source == "latencyPredictor"
        self._rng: RandomSource

    @property
    @override
    def inputs(self) -> frozenset[str]:
        """Return the prefix match, and the prediction where the time is predicted."""
        return self.consumes | {LATENCY_PREDICTION} if self._predicted else self.consumes

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's randomness."""
        self._rng = pool.rng

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the sticky rows, or all."""
        rows = candidates.rows
        if rows.size < 2 or not self._threshold or not candidates.prompt_blocks:
            return rows
        if self._explore and self._rng.random(1)[0] < self._explore:
            return rows
        sticky = candidates.prefix_matched / candidates.prompt_blocks >= self._threshold
        if not sticky.any() or sticky.all():
            return rows
        if self._predicted:
            if self._is_far_behind(sticky, candidates):
                return rows
        elif self._limit_tokens:
            tokens = table.inflight_tokens[rows]
            behind = np.min(tokens[sticky]) - np.min(tokens[~sticky])
            if behind > self._limit_tokens:
                return rows
        return rows[sticky]

    def _is_far_behind(self, sticky: NDArray[np.bool_], candidates: Candidates) -> bool:
        """Tell whether the best sticky server is predicted to take too much longer than the best other one.

        A server without a prediction is never the best of its kind while another one has one; without any
        prediction of one kind the sticky servers stay.
        """
        prediction = candidates.prediction
        if not self._limit_s or prediction is None or prediction.reason:
            return False
        first = np.nan_to_num(prediction.of(prediction.first, candidates.rows), nan=np.inf)
        best, other = np.min(first[sticky]), np.min(first[~sticky])
        return bool(best - other > self._limit_s) if other < np.inf else False
