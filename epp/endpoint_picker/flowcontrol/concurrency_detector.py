"""concurrency-detector: saturation by what this picker has in flight; also a filter. Pure."""

from typing import ClassVar, Final, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter, PluginParams, SaturationDetector

MAX_CONCURRENCY: Final = 100
MAX_TOKEN_CONCURRENCY: Final = 1_000_000


class ConcurrencyParams(PluginParams):
    """Parameters of concurrency-detector."""

    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """What is counted: requests in flight, their uncomputed prompt tokens, or the fuller of both."""
    max_concurrency: int = Field(default=MAX_CONCURRENCY, gt=0)
    """Requests in flight of an endpoint that counts as full; not read in mode tokens."""
    max_token_concurrency: int = Field(default=MAX_TOKEN_CONCURRENCY, gt=0)
    """Tokens in flight of an endpoint that counts as full; not read in mode requests."""
    headroom: float = Field(default=0.0, ge=0.0)
    """Part by which the filter lets an endpoint exceed its limits."""

    @model_validator(mode="after")
    def _has_no_unread_limit(self) -> "ConcurrencyParams":
        if self.concurrency_mode == "requests" and self.max_token_concurrency != MAX_TOKEN_CONCURRENCY:
            raise ValueError("maxTokenConcurrency is not read in concurrencyMode requests; remove it")
        if self.concurrency_mode == "tokens" and self.max_concurrency != MAX_CONCURRENCY:
            raise ValueError("maxConcurrency is not read in concurrencyMode tokens; remove it")
        return self


class ConcurrencyDetector(SaturationDetector, Filter):
    """Requests in flight over n * maxConcurrency; likewise tokens.

    hybrid: the mean over the endpoints of the larger of both ratios. No candidate at all is 1.0.

    As a filter it keeps the endpoints whose load is below the whole number of limit * (1 + headroom); it may
    keep none.
    """

    __slots__ = ("_most_requests", "_most_tokens", "_requests", "_tokens")
    type_name: ClassVar[str] = "concurrency-detector"
    params_type = ConcurrencyParams

    def __init__(self, params: ConcurrencyParams) -> None:
        mode, beyond = params.concurrency_mode, 1.0 + params.headroom
        # A limit of infinity is what an endpoint never reaches.
        self._requests = float(params.max_concurrency) if mode != "tokens" else np.inf
        self._tokens = float(params.max_token_concurrency) if mode != "requests" else np.inf
        self._most_requests = np.floor(self._requests * beyond)
        self._most_tokens = np.floor(self._tokens * beyond)

    @override
    def step(self, endpoints: int) -> float:
        """Return what one request adds to the mean; infinite where its tokens count."""
        return 1.0 / (self._requests * endpoints) if self._tokens == np.inf else np.inf

    @override
    def saturation(self, rows: Rows, table: EndpointTable, now: float) -> float:
        """Return the load of the rows over their capacity."""
        if not rows.size:
            return 1.0
        ratio: Floats = np.maximum(
            table.inflight_requests[rows] / self._requests, table.inflight_tokens[rows] / self._tokens
        )
        return float(ratio.mean())

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows below their limits."""
        rows = candidates.rows
        free = (table.inflight_requests[rows] < self._most_requests) & (
            table.inflight_tokens[rows] < self._most_tokens
        )
        kept: Rows = rows[free]
        return kept
