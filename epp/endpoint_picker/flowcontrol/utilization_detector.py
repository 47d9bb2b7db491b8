"""utilization-detector: saturation of the candidates. `Scheduler.decide` sheds by it. Pure."""

from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator
from typing_extensions import override

from cluster_client.durations import seconds
from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.scheduling.plugin import PluginParams, SaturationDetector


class UtilizationParams(PluginParams):
    """Parameters of utilization-detector."""

    queue_depth_threshold: int = Field(default=5, gt=0)
    """Effective queue of an endpoint that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Fraction of an endpoint's KV cache in use that counts as full."""
    metrics_staleness_threshold: float = Field(default=0.2, gt=0.0)
    """Age, seconds, from which an endpoint's metrics count as missing; written as a duration ("200ms")."""

    _duration = field_validator("metrics_staleness_threshold", mode="before")(seconds)


class UtilizationDetector(SaturationDetector):
    """Mean over the candidates of max(q / q threshold, kv / kv threshold), q = waiting + unseen.

    An endpoint whose metrics are missing or older than the threshold counts 1.0: what is not known is no
    room. No candidate at all is 1.0 too. Not capped: 2.0 is twice the load that is called full.
    """

    __slots__ = ("_kv", "_max_age", "_queue")
    type_name: ClassVar[str] = "utilization-detector"
    params_type = UtilizationParams

    def __init__(self, params: UtilizationParams) -> None:
        self._queue = float(params.queue_depth_threshold)
        self._kv = params.kv_cache_util_threshold
        self._max_age = params.metrics_staleness_threshold

    @override
    def saturation(self, rows: Rows, table: EndpointTable, now: float) -> float:
        """Return the load of the rows over their capacity; from 1.0 on they are saturated."""
        if not rows.size:
            return 1.0
        queue = (table.waiting[rows] + table.unseen[rows]) / self._queue
        # fmax: a server that shows only one of the two is judged by that one.
        load = np.fmax(queue, table.kv_usage[rows] / self._kv)
        fresh = table.scraped_at[rows] >= now - self._max_age
        return float(np.where(fresh & (load == load), load, 1.0).mean())
