"""Regimes: the kinds of situation for which bounds are calibrated and errors are watched apart. Pure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.matrix import Matrix
from latency_contract.schema import COLUMN

#: Regime `3 * long + queue`: queue 0, 1 to 3, above 3 requests ahead; prompts below and from 1,024 uncached
#: tokens.
REGIME_NAMES: Final = (
    "idle-short",
    "queue-short",
    "backlog-short",
    "idle-long",
    "queue-long",
    "backlog-long",
)
REGIMES: Final = len(REGIME_NAMES)
_AHEAD: Final = COLUMN["ahead_requests"]
_UNCACHED: Final = COLUMN["uncached_tokens"]
_LONG_TOKENS: Final = 1024


def regime_of(ahead_requests: float, uncached_tokens: float) -> int:
    """Return the regime of one row by its two features."""
    queue = (ahead_requests >= 1) + (ahead_requests > 3)
    return queue + 3 * (uncached_tokens >= _LONG_TOKENS)


def regimes_of(matrix: Matrix) -> NDArray[np.intp]:
    """Return the regime of each row, in [0, REGIMES). Unknown counts as idle and short."""
    ahead = matrix[:, _AHEAD]
    queue = (ahead >= 1).astype(np.intp) + (ahead > 3)
    queue += 3 * (matrix[:, _UNCACHED] >= _LONG_TOKENS)
    return queue
