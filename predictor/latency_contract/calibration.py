"""From trees to seconds: base model, heads, and the offset of each regime. Pure."""

import numpy as np
from numpy.typing import NDArray

#: What the sum of margin, trees and offset is limited to before the exponential: 0.1 ms to 6 hours.
_LOWEST_LOG, _HIGHEST_LOG = np.log(1e-4), np.log(21_600.0)


def seconds(
    raw: NDArray[np.float32], offsets: NDArray[np.float32], regimes: NDArray[np.intp]
) -> NDArray[np.float32]:
    """Return float32[heads, rows] seconds, of which no head is below the head before it.

    `raw` is float32[heads, rows]: base margin plus the sum of the trees' leaves, in log seconds; heads in
    ascending order of their quantiles. `offsets` is float32[heads, REGIMES], what calibration adds.
    """
    logs = raw + offsets[:, regimes]
    np.clip(logs, _LOWEST_LOG, _HIGHEST_LOG, out=logs)
    return np.exp(np.maximum.accumulate(logs, axis=0))
