"""utilization-filter: keeps the servers below limits on load."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.plugin import Filter, PluginParams


class Condition(PluginParams):
    """A limit on one signal."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    """Requests in flight from this picker; batch size; effective queue; fraction of the KV cache in use."""
    max_value: float = Field(ge=0.0)
    """Largest value that stays."""


class UtilizationFilterParams(PluginParams):
    """Parameters of utilization-filter."""

    conditions: Annotated[tuple[Condition, ...], Field(min_length=1)]
    """All have to be met."""
    fallback_on_empty: bool = False
    """True keeps all candidates where none meets the conditions; false leaves none (503)."""


class UtilizationFilter(Filter):
    """Keeps a server when each of its signals is at most its limit.

    An unknown signal does not meet its condition, unless it is unknown of every candidate: then the condition
    cuts nothing.
    """

    __slots__ = ("_conditions", "_fallback")
    type_name = "utilization-filter"
    params_type = UtilizationFilterParams

    def __init__(self, params: UtilizationFilterParams) -> None:
        self._conditions = [(each.metric, each.max_value) for each in params.conditions]
        self._fallback = params.fallback_on_empty

    @override
    def filter(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Rows:
        """Return the rows within all limits."""
        rows = candidates.rows
        keep = np.ones(rows.size, dtype=np.bool_)
        for metric, limit in self._conditions:
            value = _signal(metric, rows, table)
            met = value <= limit
            if met.any() or not np.isnan(value).all():
                keep &= met
        if self._fallback and not keep.any():
            return rows
        return rows[keep]


def _signal(metric: str, rows: Rows, table: EndpointTable) -> Floats:
    match metric:
        case "active-requests":
            return table.inflight_requests[rows].astype(np.float64)
        case "running-requests":
            return table.running[rows] + table.unseen[rows]
        case "waiting-queue":
            return table.waiting[rows] + table.unseen[rows]
        case _:
            return table.kv_usage[rows]
