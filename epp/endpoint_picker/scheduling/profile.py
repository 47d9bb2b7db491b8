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


class Trace:
    """What one run of a profile gave: filled by `Profile.select` where it is asked for, read afterwards."""

    __slots__ = ("rows", "weighted")

    def __init__(self) -> None:
        self.rows: Rows = np.empty(0, dtype=np.intp)
        """The candidates that the filters left."""
        self.weighted: list[tuple[str, Floats]] = []
        """(scorer name, weight x score of each row)."""

    def scores_of(self, row: int) -> tuple[tuple[str, float], ...]:
        """Return (scorer name, weighted score) of one of the rows."""
        position = int(np.flatnonzero(self.rows == row)[0])
        return tuple((name, float(scores[position])) for name, scores in self.weighted)


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything is bound when it is built: per request there is no lookup and no check."""

    name: str
    filters: tuple[FilterFn, ...]
    scorers: tuple[WeightedScorer, ...]
    pick: PickFn
    needs_prompt: bool
    """Whether a scorer wants the prompt matched against the prefix index first."""

    def select(
        self,
        request: InferenceRequest,
        rows: Rows,
        table: EndpointTable,
        rng: RandomSource,
        trace: Trace | None = None,
    ) -> Rows:
        """Return rows, best first: the primary and its fallbacks. Empty when the filters leave nothing.

        `trace` is given what this run weighed; no plugin runs twice for it.
        """
        rows = self._filtered(request, rows, table)
        if not rows.size:
            return rows
        total: Floats = np.zeros(rows.size)
        for scorer in self.scorers:
            scores = scorer.score(request, rows, table)
            scores *= scorer.weight
            total += scores
            if trace is not None:
                trace.weighted.append((scorer.name, scores))
        if trace is not None:
            trace.rows = rows
        return rows[self.pick(total, rng)]

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
