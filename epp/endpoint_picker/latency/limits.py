"""The strictest TPOT objective of what runs on each endpoint. Pure."""

import math
from collections.abc import Hashable

import numpy as np

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows


class Limits:
    """Objectives of the requests that have not ended, by row of the endpoint table."""

    __slots__ = ("_running", "_strictest", "_table")

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._running: dict[int, dict[Hashable, float]] = {}
        """Row to the objective of each request, in seconds."""
        self._strictest: Floats = np.full(len(table.endpoints), math.inf)
        table.on_free(self._forget)

    def add(self, row: int, key: Hashable, tpot_s: float) -> None:
        """Note a request on its way to the row's endpoint."""
        self._grow()
        self._running.setdefault(row, {})[key] = tpot_s
        self._strictest[row] = min(self._strictest.item(row), tpot_s)

    def remove(self, row: int, key: Hashable) -> None:
        """Note its end; nothing happens when it is not known, or when the row has lost its endpoint since."""
        running = self._running.get(row)
        if running is None or running.pop(key, None) is None:
            return
        self._strictest[row] = min(running.values(), default=math.inf)
        if not running:
            del self._running[row]

    def of(self, rows: Rows) -> Floats | None:
        """Return the rows' strictest objectives, infinity for none; None when no row has any."""
        if not self._running:
            return None
        self._grow()
        return self._strictest[rows]

    def _forget(self, row: int) -> None:
        if self._running.pop(row, None) is not None:
            self._strictest[row] = math.inf

    def _grow(self) -> None:
        missing = len(self._table.endpoints) - self._strictest.size
        if missing > 0:
            self._strictest = np.concatenate([self._strictest, np.full(missing, math.inf)])
