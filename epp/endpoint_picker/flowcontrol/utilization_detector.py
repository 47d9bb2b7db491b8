"""utilization-detector: saturation of the candidates; `Scheduler.decide` sheds by it. Also a filter. Pure."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator
from typing_extensions import override

from cluster_client.durations import seconds
from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter, PluginParams, Pool, SaturationDetector
from endpoint_picker.scheduling.utilization import utilization


class UtilizationParams(PluginParams):
    """Parameters of utilization-detector."""

    queue_depth_threshold: int = Field(default=5, gt=0)
    """Effective queue of an endpoint that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Fraction of an endpoint's KV cache in use that counts as full."""
    metrics_staleness_threshold: float = Field(default=0.2, gt=0.0)
    """Age, seconds, from which an endpoint's metrics count as missing; written as a duration ("200ms")."""
    headroom: float = Field(default=0.0, ge=0.0)
    """Part by which the filter lets an endpoint exceed its limits."""

    _duration = field_validator("metrics_staleness_threshold", mode="before")(seconds)


class UtilizationDetector(SaturationDetector, Filter):
    """Mean over the candidates of max(q / q threshold, kv / kv threshold), q = waiting + unseen.

    With flow control, of `waiting` goes what has ended since the page was asked for: its place was taken.

    An endpoint whose metrics are missing or older than the threshold counts 1.0: what is not known is no
    room. No candidate at all is 1.0 too. Not capped: 2.0 is twice the load that is called full.

    As a filter it keeps the endpoints whose metrics are fresh and whose queue and cache are both below
    threshold * (1 + headroom), and all when it would keep none.
    """

    __slots__ = ("_clock", "_kv", "_max_age", "_most", "_queue")
    type_name: ClassVar[str] = "utilization-detector"
    reads_metrics: ClassVar[bool] = True
    params_type = UtilizationParams

    def __init__(self, params: UtilizationParams) -> None:
        self._queue = float(params.queue_depth_threshold)
        self._kv = params.kv_cache_util_threshold
        self._max_age = params.metrics_staleness_threshold
        self._most = 1.0 + params.headroom
        self._clock: Callable[[], float]

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's clock, by which the filter tells old metrics."""
        self._clock = pool.clock

    @property
    @override
    def max_age_s(self) -> float:
        """Return metricsStalenessThreshold."""
        return self._max_age

    @override
    def step(self, endpoints: int) -> float:
        """Return what one request in the queue of one of the endpoints adds to the mean."""
        return 1.0 / (self._queue * endpoints)

    @override
    def saturation(self, rows: Rows, table: EndpointTable, now: float) -> float:
        """Return the load of the rows over their capacity; from 1.0 on they are saturated."""
        if not rows.size:
            return 1.0
        load = utilization(rows, table, self._queue, self._kv, freed=True)
        fresh = table.scraped_at[rows] >= now - self._max_age
        return float(np.where(fresh & (load == load), load, 1.0).mean())

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows below their limits, or all."""
        rows = candidates.rows
        load = utilization(rows, table, self._queue, self._kv)  # a comparison with NaN is false
        fresh = table.scraped_at[rows] >= self._clock() - self._max_age
        kept: Rows = rows[fresh & (load < self._most)]
        return kept if kept.size else rows
