"""A column computed from discovered facts of endpoints, such as their labels. Pure."""

from collections.abc import Callable

import numpy as np

from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Floats


class PerEndpoint:
    """One number for each endpoint, computed once for each version of the table."""

    __slots__ = ("_of", "_table", "_values", "_version")

    def __init__(self, of: Callable[[Endpoint], float]) -> None:
        self._of = of
        self._table: EndpointTable | None = None
        self._version = -1
        self._values: Floats = np.zeros(0)

    def column(self, table: EndpointTable) -> Floats:
        """Return the number of every row, NaN for a row without endpoint. Do not change the array."""
        if table.version != self._version or table is not self._table:
            self._values = np.array(
                [np.nan if each is None else self._of(each) for each in table.endpoints], dtype=np.float64
            )
            self._table, self._version = table, table.version
        return self._values
