"""A scheduling profile: filters, then weighted scorers, then one picker. Frozen, pure, synchronous."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import RandomSource

FilterFn = Callable[[InferenceRequest, Rows, EndpointTable], Rows]
ScoreFn = Callable[[InferenceRequest, Rows, EndpointTable], Floats]
PickFn = Callable[[Floats, RandomSource], Rows]


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer in a profile."""

    name: str
    weight: float
    score: ScoreFn


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a decision came about: the candidates that passed the filters and what each scorer gave them."""

    rows: Rows
    weighted: tuple[tuple[str, Floats], ...]
    """(scorer name, weight x score of each row)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything is bound when it is built: per request there is no lookup and no check."""

    name: str
    filters: tuple[FilterFn, ...]
    scorers: tuple[WeightedScorer, ...]
    pick: PickFn
    needs_prompt: bool
    """Whether a scorer wants the prompt matched against the prefix index first."""

    def select(self, request: InferenceRequest, rows: Rows, table: EndpointTable, rng: RandomSource) -> Rows:
        """Return rows, best first: the primary and its fallbacks. Empty when the filters leave nothing."""
        rows = self._filtered(request, rows, table)
        if not rows.size:
            return rows
        total: Floats = np.zeros(rows.size)
        for scorer in self.scorers:
            scores = scorer.score(request, rows, table)
            scores *= scorer.weight
            total += scores
        return rows[self.pick(total, rng)]

    def explain(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Explanation:
        """Return what `select` would weigh, scorer by scorer; it decides nothing."""
        rows = self._filtered(request, rows, table)
        weighted = tuple(
            (scorer.name, scorer.weight * scorer.score(request, rows, table))
            if rows.size
            else (scorer.name, np.zeros(0))
            for scorer in self.scorers
        )
        return Explanation(rows=rows, weighted=weighted)

    def _filtered(self, request: InferenceRequest, rows: Rows, table: EndpointTable) -> Rows:
        for narrow in self.filters:
            if not rows.size:
                break
            rows = narrow(request, rows, table)
        return rows


def clamped(score: ScoreFn) -> ScoreFn:
    """Return the scorer with its answers forced into [0, 1]; NaN becomes 0."""

    def bounded(request: InferenceRequest, rows: Rows, table: EndpointTable) -> Floats:
        return np.clip(np.nan_to_num(score(request, rows, table), nan=0.0), 0.0, 1.0)

    return bounded
