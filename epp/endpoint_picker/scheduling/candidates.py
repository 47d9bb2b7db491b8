"""The candidates of one decision, and what its stages learn about them. Each decision owns its own."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.scheduling.hold import Hold

#: What producers make and scorers read, by the ecosystem's names of it.
PREFIX_MATCH: Final = "PrefixCacheMatchInfo"

_NO_FLOATS: Final[Floats] = np.zeros(0)
_NO_ROWS: Final[Rows] = np.zeros(0, dtype=np.intp)


class Candidates:
    """Filled from stage to stage. Every array has one value a candidate, in the order of `rows`."""

    __slots__ = (
        "block_tokens",
        "entry_port",
        "held",
        "order",
        "prefix_chain",
        "prefix_matched",
        "prompt_blocks",
        "rows",
        "scored",
    )

    def __init__(self, rows: Rows, held: Hold | None = None) -> None:
        self.rows = rows
        """Rows of the endpoint table in ascending order; filters narrow them, the other stages do not."""
        self.held = held
        """The hold that was released when this decision is made after a wait."""
        self.scored: list[tuple[str, Floats]] | None = None
        """(scorer name, weighted score of each candidate), for recording; None when it is not asked for."""
        self.order = _NO_ROWS
        """Positions in `rows`, best first, as the picker chose; empty when the filters left nothing."""
        self.entry_port = 0
        """Port by which the pod of the first in order is entered; 0 is the endpoint's own."""
        # PREFIX_MATCH.
        self.prefix_matched = _NO_FLOATS
        """Leading blocks of the prompt that the candidate is believed to hold."""
        self.prompt_blocks = 0
        """Full blocks of the prompt."""
        self.block_tokens = 0
        """Tokens in a block; 0 when nothing was matched."""
        self.prefix_chain: Sequence[int] = ()
        """Hashes of the prompt's blocks."""

    def narrow(self, rows: Rows) -> None:
        """Keep only these of the rows, and what producers have learnt about them."""
        if rows.size != self.rows.size:
            if self.prefix_matched.size:
                self.prefix_matched = self.prefix_matched[np.searchsorted(self.rows, rows)]
            self.rows = rows

    def scores_of(self, position: int) -> tuple[tuple[str, float], ...]:
        """Return (scorer name, weighted score) of one candidate, as recorded."""
        return tuple((name, float(scores[position])) for name, scores in self.scored or ())
