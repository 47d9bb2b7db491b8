"""latency-scorer: scores by the headroom between predicted latency and the request's objectives."""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import LATENCY_PREDICTION, PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import PluginParams, Scorer

#: A range of headrooms up to this, in seconds, counts as equal headrooms.
EQUAL_S: Final = 1e-12

_Mask = NDArray[np.bool_]


class LatencyParams(PluginParams):
    """Parameters of latency-scorer."""

    ttft_weight: float = Field(default=0.8, ge=0.0)
    """Weight of the TTFT headroom."""
    tpot_weight: float = Field(default=0.2, ge=0.0)
    """Weight of the TPOT headroom."""
    headroom_selection_strategy: Literal["least", "most", "fastest"] = "least"
    """Among endpoints that meet the objectives: `least` fills the ones with the least headroom, `most` takes
    the one with the most, `fastest` goes by the predicted times, as for a request without an objective."""
    composite_kv_weight: float = Field(default=1.0, ge=0.0, alias="compositeKVWeight")
    """Weight of the free KV cache where nothing is predicted."""
    composite_queue_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the queue where nothing is predicted."""
    composite_prefix_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the prefix match where nothing is predicted."""


class LatencyScorer(Scorer):
    """Headroom h of each endpoint, scaled to [0, 1] among those that are scored; the others get 0.

    Endpoints that meet the objectives are scored, if there are any; else the idle ones; else the first group
    that has any of: misses TPOT alone, misses TTFT alone, misses both. Of those that miss only what is missed
    counts. With `fastest` objectives choose the group alone, and -h are the predicted times. With |h| scaled
    to c in [0, 1], `most` gives (int(100 c) + 1) / 100, the other strategies and every group that misses
    (int(100 (1 - c)) + 1) / 100. An endpoint without a prediction gets 0. Without any prediction the score
    is the weighted mean of free KV cache, (longest queue - q) / longest queue, and prefix match, rounded to
    0.01.
    """

    __slots__ = ("_fastest", "_kv", "_most", "_prefix", "_queue", "_tpot", "_ttft")
    type_name = "latency-scorer"
    params_type = LatencyParams
    consumes = frozenset({LATENCY_PREDICTION, PREFIX_MATCH})
    bounded = True

    def __init__(self, params: LatencyParams) -> None:
        total = params.ttft_weight + params.tpot_weight
        self._ttft = params.ttft_weight / total if total else 1.0
        self._tpot = params.tpot_weight / total if total else 0.0
        self._most = params.headroom_selection_strategy == "most"
        self._fastest = params.headroom_selection_strategy == "fastest"
        parts = (params.composite_kv_weight, params.composite_queue_weight, params.composite_prefix_weight)
        total = sum(parts)
        self._kv, self._queue, self._prefix = [part / total for part in parts] if total else (1.0, 0.0, 0.0)

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the scores."""
        prediction = candidates.prediction
        if prediction is None or prediction.reason:
            return self._composite(candidates, table)
        rows = candidates.rows
        headroom = prediction.of(prediction.headroom, rows)
        missed = headroom < 0.0
        if prediction.is_complete and rows is prediction.rows:
            known: _Mask | None = None
        else:
            known = ~np.logical_or.reduce(np.isnan(headroom))
            if not known.any():
                return self._composite(candidates, table)
        if not prediction.objectives.any:  # every endpoint misses by its whole prediction
            idle = _both(table.inflight_requests[rows] == 0, known)
            return self._scores_of(idle if idle.any() else known, headroom, most=False)
        late, slow = missed
        scored = _both(~(late | slow), known)
        most = self._most
        if not scored.any():
            most = False
            scored = _both(table.inflight_requests[rows] == 0, known)
            if not scored.any():
                groups = (_both(slow & ~late, known), _both(late & ~slow, known), _both(late & slow, known))
                scored = next(each for each in groups if each.any())
            # What an endpoint meets does not count: else the least headroom of the met objective would win.
            headroom = np.minimum(headroom, 0.0)
        if self._fastest:
            headroom, most = prediction.of(prediction.times, rows), False
        return self._scores_of(scored, headroom, most=most)

    def _scores_of(self, scored: _Mask | None, headroom: Floats, *, most: bool) -> Floats:
        """Return the scores of these endpoints, 0 for the others; None: of all."""
        if scored is None or scored.all():
            return self._scaled(np.abs(headroom), most=most)
        scores = np.zeros(scored.size)
        scores[scored] = self._scaled(np.abs(headroom[:, scored]), most=most)
        return scores

    def _scaled(self, distance: Floats, *, most: bool) -> Floats:
        """Return the scores of the endpoints with these distances to the objectives: [2, endpoints]."""
        low = np.minimum.reduce(distance, axis=1)
        first_range, tpot_range = (np.maximum.reduce(distance, axis=1) - low).tolist()
        distance -= low[:, np.newaxis]
        part: Floats
        if first_range <= EQUAL_S and tpot_range <= EQUAL_S:
            part = np.full(distance.shape[1], 0.5)
        elif first_range <= EQUAL_S:
            part = distance[1] / tpot_range
        elif tpot_range <= EQUAL_S:
            part = distance[0] / first_range
        else:
            part = distance[0] * (self._ttft / first_range)
            part += distance[1] * (self._tpot / tpot_range)
        if not most:
            part = 1.0 - part
        part *= 100.0
        part += 1e-9  # 0.29 * 100 is 28.999999999999996
        np.floor(part, out=part)
        part += 1.0
        part /= 100.0
        return np.minimum(part, 1.0)

    def _composite(self, candidates: Candidates, table: EndpointTable) -> Floats:
        rows = candidates.rows
        queue = table.waiting[rows] + table.unseen[rows]
        longest = float(np.fmax.reduce(queue, initial=0.0))
        # fmin takes the longest where the queue is unknown.
        short = 1.0 - np.fmin(queue, longest) / longest if longest > 0.0 else np.ones(rows.size)
        total: Floats = self._kv * (1.0 - np.nan_to_num(table.kv_usage[rows], nan=1.0))
        total += self._queue * np.where(np.isnan(queue), 0.0, short)
        if candidates.prompt_blocks:
            total += self._prefix * candidates.prefix_matched / candidates.prompt_blocks
        return np.clip(np.round(total, 2), 0.0, 1.0)


def _both(mask: _Mask, known: _Mask | None) -> _Mask:
    return mask if known is None else mask & known
