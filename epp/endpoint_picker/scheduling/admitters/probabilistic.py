"""probabilistic-admitter: sheds requests of negative priority ever more often as the pool fills."""

from math import exp, inf, log
from typing import Final

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.decision import Refusal
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import Admitter, PluginParams, Pool, RandomSource
from endpoint_picker.scheduling.utilization import utilization

_SHED: Final = Refusal(Outcome.SATURATED, "the pool is busy and this request may be shed")


class ProbabilisticParams(PluginParams):
    """Parameters of probabilistic-admitter."""

    queue_depth_threshold: int = Field(default=5, gt=0)
    """Effective queue of an endpoint that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Fraction of an endpoint's KV cache in use that counts as full."""
    power: float = Field(default=5.0, gt=0.0)
    """How sharply the share of refusals rises with the saturation."""
    k: float = Field(default=300.0, gt=0.0)
    """Factor of the share of refusals."""


class ProbabilisticAdmitter(Admitter):
    """Refuses a request of negative priority (429) with probability min(k * saturation^power, 1).

    The saturation is the mean over the endpoints of max(q / q threshold, kv / kv threshold) with q =
    waiting + unseen. An endpoint that shows neither counts 1. With the defaults all such requests are refused
    from a saturation of 0.32 on.
    """

    __slots__ = ("_factor", "_kv", "_power", "_queue", "_rng")
    type_name = "probabilistic-admitter"
    params_type = ProbabilisticParams

    def __init__(self, params: ProbabilisticParams) -> None:
        self._queue = float(params.queue_depth_threshold)
        self._kv = params.kv_cache_util_threshold
        self._power = params.power
        self._factor = log(params.k)
        self._rng: RandomSource

    @override
    def attach(self, pool: Pool) -> None:
        """Take the pool's randomness."""
        self._rng = pool.rng

    @override
    def refusal(
        self, request: InferenceRequest, rows: Rows, table: EndpointTable, now: float
    ) -> Refusal | None:
        """Return the refusal, drawn by chance."""
        if request.priority >= 0:
            return None
        load = utilization(rows, table, self._queue, self._kv)
        saturation = float(np.where(np.isnan(load), 1.0, load).mean()) if rows.size else 1.0
        # By logarithms: a large power of a large saturation is no float.
        chance = self._factor + self._power * log(saturation) if saturation > 0.0 else -inf
        return _SHED if self._rng.random(1)[0] < exp(min(chance, 0.0)) else None
