"""no-hit-lru-scorer: spreads the prompts that no server holds over the servers in turn."""

from typing import ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable, Floats
from endpoint_picker.decision import Reservation
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import PREFIX_MATCH, Candidates
from endpoint_picker.scheduling.plugin import Follower, PrefixConsumerParams, Scorer


class NoHitLruParams(PrefixConsumerParams):
    """Parameters of no-hit-lru-scorer."""

    lru_size: int = Field(default=1024, gt=0)
    """Servers whose last new prompt is remembered; the oldest is forgotten first."""


class NoHitLruScorer(Scorer, Follower):
    """A prompt that a candidate holds: 0.5 each. A new prompt: 1 - rank / (n - 1), 1 for a lone candidate.

    Servers that never got a new prompt rank first, in the order of the table. The others follow, those whose
    last new prompt is oldest first.
    """

    __slots__ = ("_size", "_used")
    type_name = "no-hit-lru-scorer"
    params_type = NoHitLruParams
    bounded: ClassVar[bool] = True
    consumes: ClassVar[frozenset[str]] = frozenset({PREFIX_MATCH})

    def __init__(self, params: NoHitLruParams) -> None:
        self._size = params.lru_size
        self._used: dict[tuple[int, int], None] = {}
        """(row, generation) of servers, the longest unused first."""

    @override
    def score(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Floats:
        """Return the score of each row by its turn."""
        rows = candidates.rows
        if candidates.prefix_matched.any():
            return np.full(rows.size, 0.5)
        if rows.size == 1:
            return np.ones(1)
        turn = {key: at for at, key in enumerate(self._used, 1)}
        generation = table.generation
        order = np.array([turn.get((row, generation[row]), 0) for row in rows.tolist()]).argsort(
            kind="stable"
        )
        scores = np.empty(rows.size)
        scores[order] = np.linspace(1.0, 0.0, rows.size)
        return scores

    @override
    def decided(self, request: InferenceRequest, candidates: Candidates, reservation: Reservation) -> None:
        """Note where a new prompt went."""
        if candidates.prefix_matched.any():
            return
        key = reservation.row, reservation.generation
        self._used.pop(key, None)
        self._used[key] = None
        if len(self._used) > self._size:
            del self._used[next(iter(self._used))]
