"""A scheduling profile: filters, producers, late filters, weighted scorers, one picker. Pure, synchronous."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import RandomSource

FilterFn = Callable[[InferenceRequest, Candidates, EndpointTable], Rows]
ProduceFn = Callable[[InferenceRequest, Candidates, EndpointTable], Hold | None]
ScoreFn = Callable[[InferenceRequest, Candidates, EndpointTable], Floats]
PickFn = Callable[[Candidates, Floats, RandomSource], Rows]


class WeightedScorer(NamedTuple):
    """A scorer in a profile."""

    name: str
    weight: float
    score: ScoreFn


@dataclass(frozen=True, slots=True)
class Profile:
    """The stages of one profile as bound methods, so that a request needs no lookup and no check."""

    name: str
    filters: tuple[FilterFn, ...]
    producers: tuple[ProduceFn, ...]
    """The producers whose outputs the profile consumes, each after the producers that it consumes from."""
    scorers: tuple[WeightedScorer, ...]
    pick: PickFn
    late_filters: tuple[FilterFn, ...] = ()
    """The first filter with `consumes`, and the filters after it; they run after the producers."""

    def run(
        self, request: InferenceRequest, candidates: Candidates, table: EndpointTable, rng: RandomSource
    ) -> Hold | None:
        """Narrow the candidates and set their order, best first; it stays empty when none is left.

        A producer's hold ends the run and is returned.
        """
        for narrow in self.filters:
            candidates.rows = narrow(request, candidates, table)
            if not candidates.rows.size:
                return None
        for produce in self.producers:
            hold = produce(request, candidates, table)
            if hold is not None:
                return hold
        for narrow in self.late_filters:
            candidates.narrow(narrow(request, candidates, table))
            if not candidates.rows.size:
                return None
        total: Floats | None = None
        scored = candidates.scored
        for name, weight, score in self.scorers:
            scores = score(request, candidates, table)
            scores *= weight
            if scored is not None:
                scored.append((name, scores.copy()))
            if total is None:
                total = scores
            else:
                total += scores
        if total is None:
            total = np.zeros(candidates.rows.size)
        candidates.order = self.pick(candidates, total, rng)
        return None


def clamped(score: ScoreFn) -> ScoreFn:
    """Return the scorer with its answers forced into [0, 1]; NaN becomes 0."""

    def bounded(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        return np.clip(np.nan_to_num(score(request, candidates, table), nan=0.0), 0.0, 1.0)

    return bounded
