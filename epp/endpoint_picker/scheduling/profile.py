"""A scheduling profile: filters, producers, late filters, weighted scorers, one picker. Pure, synchronous."""

from collections.abc import Callable
from dataclasses import dataclass, field
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
    filter_names: tuple[str, ...] = ()
    """Names of `filters`, then of `late_filters`, as the configuration lists them."""
    picker_name: str = ""
    _scoring: tuple[tuple[ScoreFn, Floats], ...] = field(init=False, repr=False, compare=False)
    """Each scorer with its weight in an array of no dimension: numpy multiplies by it in two thirds of the
    time that it needs for a Python float."""

    def __post_init__(self) -> None:
        scoring = tuple((each.score, np.array(each.weight, dtype=np.float64)) for each in self.scorers)
        object.__setattr__(self, "_scoring", scoring)

    def run(
        self, request: InferenceRequest, candidates: Candidates, table: EndpointTable, rng: RandomSource
    ) -> Hold | None:
        """Narrow the candidates and set their order, best first; it stays empty when none is left.

        A producer's hold ends the run and is returned. The rows that each filter left and the answers of the
        scorers stay in the candidates, for an explanation of the decision.
        """
        candidates.profile = self.name
        left: list[Rows] = []
        if self.filter_names:
            candidates.left = left
        for narrow in self.filters:
            rows = candidates.rows = narrow(request, candidates, table)
            left.append(rows)
            if not rows.size:
                return None
        for produce in self.producers:
            hold = produce(request, candidates, table)
            if hold is not None:
                hold.prefix_chain = candidates.prefix_chain
                return hold
        for narrow in self.late_filters:
            candidates.narrow(narrow(request, candidates, table))
            left.append(candidates.rows)
            if not candidates.rows.size:
                return None
        total: Floats | None = None
        answers: list[Floats] = []
        candidates.scores = answers
        for score, weight in self._scoring:
            scores = score(request, candidates, table)
            answers.append(scores)
            weighted = scores * weight
            if total is None:
                total = weighted
            else:
                total += weighted
        if total is None:
            total = np.zeros(candidates.rows.size)
        candidates.order = self.pick(candidates, total, rng)
        return None


def clamped(score: ScoreFn) -> ScoreFn:
    """Return the scorer with its answers forced into [0, 1]; NaN becomes 0."""

    def bounded(request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        return np.clip(np.nan_to_num(score(request, candidates, table), nan=0.0), 0.0, 1.0)

    return bounded
