"""A model in memory: from a matrix to log seconds, and with calibration to seconds."""

import numpy as np
import xgboost
from numpy.typing import NDArray

from latency_contract.base_model import margins
from latency_contract.calibration import seconds
from latency_contract.matrix import Matrix
from latency_contract.regimes import regimes_of
from latency_contract.schema import Target


class LogModel:
    """One target's heads without calibration."""

    def __init__(self, target: Target, coefficients: tuple[float, ...], trees: bytes, heads: int) -> None:
        """Raises xgboost.core.XGBoostError for bytes that are no model."""
        self._target = target
        self._coefficients = coefficients
        self._heads = heads
        self._booster = xgboost.Booster({"nthread": 1})
        self._booster.load_model(bytearray(trees))

    def raw(self, matrix: Matrix) -> NDArray[np.float32]:
        """Return float32[heads, rows] log seconds."""
        margin = margins(matrix, self._target, self._coefficients)
        heads = np.repeat(margin[:, None], self._heads, axis=1)
        if not len(matrix):
            return heads.T
        data = xgboost.DMatrix(matrix, base_margin=heads, nthread=1)
        found = self._booster.predict(data, output_margin=True)
        return np.ascontiguousarray(np.asarray(found, np.float32).reshape(len(matrix), self._heads).T)

    def seconds(self, matrix: Matrix, offsets: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return float32[heads, rows] seconds; `offsets` is float32[heads, REGIMES]."""
        return seconds(self.raw(matrix), offsets, regimes_of(matrix))
