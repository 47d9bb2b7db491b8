"""The candidates of one decision, with the facts that its stages add. No two decisions share them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from endpoint_picker.datalayer.table import Floats, Rows
from endpoint_picker.latency.prediction import Prediction
from endpoint_picker.scheduling.hold import Hold

#: Names of outputs of producers, as `consumes` and `produces` declare them; the names are the ecosystem's.
PREFIX_MATCH: Final = "PrefixCacheMatchInfo"
TOKENIZED_PROMPT: Final = "TokenizedPrompt"
ENCODER_MATCH: Final = "EncoderCacheMatchInfo"
LATENCY_PREDICTION: Final = "LatencyPredictionInfo"

#: `Candidates.peer` of a request without one.
NO_PEER: Final = -1

_NO_FLOATS: Final[Floats] = np.zeros(0)
_NO_ROWS: Final[Rows] = np.zeros(0, dtype=np.intp)


class Candidates:
    """Each stage adds to it. Every array has one value for each candidate, in the order of `rows`."""

    __slots__ = (
        "block_tokens",
        "entry_port",
        "held",
        "left",
        "media_matched",
        "order",
        "peer",
        "prediction",
        "prefix_chain",
        "prefix_matched",
        "prefix_source",
        "profile",
        "prompt_blocks",
        "rows",
        "scores",
    )

    def __init__(self, rows: Rows, held: Hold | None = None) -> None:
        self.rows = rows
        """Rows of the endpoint table in ascending order; filters narrow them, the other stages do not."""
        self.held = held
        """The released hold when the decision is made after a wait, else None."""
        self.profile = ""
        """Name of the profile that ran on these candidates; "" before that."""
        self.left: Sequence[Rows] = ()
        """The rows that each filter left, in the order in which the filters ran."""
        self.scores: Sequence[Floats] = ()
        """The answer of each scorer, not weighted."""
        self.order = _NO_ROWS
        """Positions in `rows`, best first, as the picker chose; empty when the filters left nothing."""
        self.peer = NO_PEER
        """Row that an earlier profile chose for the same request; written by the profile handler."""
        self.entry_port = 0
        """Port of the destination on the first endpoint's address; 0 is the endpoint's own port."""
        self.prediction: Prediction | None = None
        """Written by the producer of LATENCY_PREDICTION; its rows are those that were asked about."""
        # Written by the producer of PREFIX_MATCH.
        self.prefix_matched = _NO_FLOATS
        """Leading blocks of the prompt that the candidate is believed to hold."""
        self.prompt_blocks = 0
        """Full blocks of the prompt."""
        self.block_tokens = 0
        """Tokens in a block; 0 when nothing was matched."""
        self.prefix_chain: Sequence[int] = () if held is None else held.prefix_chain
        """Hashes of the prompt's blocks; not empty before that when an earlier profile has made them, or the
        decision before a wait."""

        self.prefix_source = ""
        """Which index the matches come from, and why not from a better one; "" for the only one."""
        # Written by the producer of ENCODER_MATCH.
        self.media_matched = _NO_FLOATS
        """By row of the table: part of the prompt's media whose embeddings the server is believed to hold."""

    def narrow(self, rows: Rows) -> None:
        """Keep only these of the rows, with their prefix matches."""
        if rows.size != self.rows.size:
            if self.prefix_matched.size:
                self.prefix_matched = self.prefix_matched[np.searchsorted(self.rows, rows)]
            self.rows = rows
