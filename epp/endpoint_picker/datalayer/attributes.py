"""Attributes of endpoints: numbers that a configuration names, beside the table's own signals. Pure.

An attribute belongs to the plugin that writes it, so its key is (name of that plugin, attribute).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

AttributeKey = tuple[str, str]
"""(name of the plugin that writes it, attribute)."""

#: Most attributes; a further one takes the place of the oldest. Reloads with ever new names stay bounded.
MAX_ATTRIBUTES: Final = 256


class AttributeColumns:
    """One column for each attribute, with one value for each row of the endpoint table."""

    __slots__ = ("_columns", "_size", "_unknown", "_written_at")

    def __init__(self, size: int) -> None:
        self._size = size
        self._columns: dict[AttributeKey, NDArray[np.float64]] = {}
        self._written_at: dict[AttributeKey, NDArray[np.float64]] = {}
        self._unknown = np.full(size, np.nan)

    def column(self, key: AttributeKey) -> NDArray[np.float64]:
        """Return the attribute of every row, NaN where it is unknown. Do not change the array."""
        return self._columns.get(key, self._unknown)

    def of_row(self, row: int) -> dict[AttributeKey, float]:
        """Return the known attributes of the row."""
        values = {key: float(column[row]) for key, column in self._columns.items()}
        return {key: value for key, value in values.items() if value == value}  # not NaN

    def write(self, row: int, key: AttributeKey, value: float, at: float) -> None:
        """Set the attribute of one row, as of `at`, seconds of the caller's monotonic clock."""
        column = self._columns.get(key)
        if column is None:
            if len(self._columns) >= MAX_ATTRIBUTES:
                oldest = next(iter(self._columns))
                del self._columns[oldest], self._written_at[oldest]
            column = self._columns[key] = np.full(self._size, np.nan)
            self._written_at[key] = np.full(self._size, -np.inf)
        column[row] = value
        self._written_at[key][row] = at

    def expire(self, before: float) -> None:
        """Set every value that was written before this time to NaN."""
        for key, column in self._columns.items():
            column[self._written_at[key] < before] = np.nan

    def forget(self, row: int) -> None:
        """Set all attributes of the row to NaN."""
        for column in self._columns.values():
            column[row] = np.nan

    def grow(self, size: int) -> None:
        """Make room for this many rows."""
        more = size - self._size
        self._size = size
        self._unknown = np.full(size, np.nan)
        for columns, fill in ((self._columns, np.nan), (self._written_at, -np.inf)):
            for key, column in columns.items():
                columns[key] = np.concatenate([column, np.full(more, fill)])
