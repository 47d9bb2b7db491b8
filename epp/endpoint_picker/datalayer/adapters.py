"""The LoRA adapters of each endpoint: those that its metrics page shows, and those that it holds idle. Pure.

A vLLM server has a fixed number of adapter slots. Its page names the adapters of the requests that run and
wait, and forgets an adapter with its last request, although the adapter stays in its slot until another one
needs the slot. The memory here models that: an adapter that ran, or that this picker sent a request for, is
*resident* until the server would unload it, which is when the slots are full and it was used least recently.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Adapters of one row that are kept, running, waiting and resident ones each.
MAX_ADAPTERS: Final = 256
#: Names of adapters that are remembered as such; the one first seen longest ago is forgotten first.
MAX_KNOWN: Final = 8192

_NONE: Final[frozenset[str]] = frozenset()
_NO_ROWS: Final[frozenset[int]] = frozenset()


class AdapterReading(NamedTuple):
    """What a metrics page shows of a server's adapters."""

    running: frozenset[str]
    waiting: frozenset[str]
    """Adapters of waiting requests; those that run as well may be among them."""
    slots: int
    """Adapters that can run at a time; 0 is unknown."""


class AdapterColumns:
    """Written by `ScrapeColumns` (`report`) and the lora-affinity-scorer (`sent`, `unload`, `forget_idle`).

    A name becomes known when a server's page shows it. Only known names are remembered as resident, because a
    client may send any model name.
    """

    __slots__ = (
        "_known",
        "_resident",
        "_rows_resident",
        "_rows_running",
        "_rows_waiting",
        "_running",
        "_waiting",
        "held",
        "idle_since",
        "shown",
        "slots",
    )

    def __init__(self, size: int) -> None:
        self.slots = np.zeros(size, dtype=np.int64)
        """Adapters that the server can run at a time; 0 is unknown."""
        self.shown = np.zeros(size, dtype=np.int64)
        """Different adapters that run or wait, by the last page."""
        self.held = np.zeros(size, dtype=np.int64)
        """Different adapters that are resident, or wait."""
        self.idle_since: NDArray[np.float64] = np.full(size, np.inf)
        """Last use of the resident adapter that the server would unload next; inf when all of them run."""
        self._running: dict[int, frozenset[str]] = {}
        self._waiting: dict[int, frozenset[str]] = {}
        self._resident: dict[int, dict[str, float]] = {}
        """Row to its resident adapters and when each was last used, the longest unused first."""
        self._rows_running: dict[str, set[int]] = {}
        self._rows_waiting: dict[str, set[int]] = {}
        self._rows_resident: dict[str, set[int]] = {}
        # An OrderedDict, as a dict finds its first key slowly once many first keys are gone.
        self._known: OrderedDict[str, None] = OrderedDict()

    def is_known(self, adapter: str) -> bool:
        """Tell whether a server's page has shown the adapter."""
        return adapter in self._known

    def running(self, adapter: str) -> Collection[int]:
        """Return the rows whose page shows that the adapter runs."""
        return self._rows_running.get(adapter, _NO_ROWS)

    def waiting(self, adapter: str) -> Collection[int]:
        """Return the rows whose page shows that the adapter waits and does not run."""
        return self._rows_waiting.get(adapter, _NO_ROWS)

    def resident(self, adapter: str) -> Collection[int]:
        """Return the rows that are believed to have the adapter in a slot, running or idle."""
        return self._rows_resident.get(adapter, _NO_ROWS)

    def of_row(self, row: int) -> Mapping[str, float]:
        """Return the row's resident adapters and when each was last used, the longest unused first."""
        return self._resident.get(row, {})

    def report(self, row: int, reading: AdapterReading | None, at: float) -> None:
        """Take what a page shows, as of `at`; None: the page shows nothing of adapters."""
        if reading is None:
            if self.slots[row] or self.shown[row]:
                self._show(row, _NONE, _NONE, 0)
            return
        running = _bounded(reading.running)
        self._show(row, running, _bounded(reading.waiting) - running, reading.slots)
        waiting = self._waiting.get(row, _NONE)
        # A waiting adapter is being loaded when there is a slot for it.
        in_slots = running | waiting if self.shown[row] <= self.slots[row] else running
        for adapter in running | waiting:
            self._note(adapter)
        for adapter in in_slots:
            self._use(row, adapter, at)
        self._settle(row)

    def sent(self, row: int, adapter: str, now: float) -> None:
        """Note that a request for the adapter goes to the row's server, which then loads it if needed."""
        if adapter in self._known and self.slots[row]:
            self._use(row, adapter, now)
            self._settle(row)

    def unload(self, row: int, adapter: str) -> None:
        """Note that the row's server does not hold the adapter, unless its page shows it running."""
        if adapter in self._resident.get(row, {}) and adapter not in self._running.get(row, _NONE):
            self._drop(row, adapter)
            self._settle(row)

    def forget_idle(self, before: float) -> None:
        """Forget the idle adapters that were last used before this time."""
        if self.idle_since.min() >= before:
            return
        for row in np.flatnonzero(self.idle_since < before).tolist():
            running = self._running.get(row, _NONE)
            for adapter, used in list(self._resident[row].items()):
                if used < before and adapter not in running:
                    self._drop(row, adapter)
            self._settle(row)

    def expire(self, stale: NDArray[np.bool_]) -> None:
        """Set what the pages of these rows showed to unknown. The memory of resident adapters stays."""
        for row in np.flatnonzero(stale & ((self.slots > 0) | (self.shown > 0))).tolist():
            self._show(row, _NONE, _NONE, 0)

    def forget(self, row: int) -> None:
        """Forget all about the row."""
        if row not in self._resident and not self.slots[row] and row not in self._waiting:
            return
        self._show(row, _NONE, _NONE, 0)
        for adapter in list(self._resident.get(row, {})):
            self._drop(row, adapter)
        self._resident.pop(row, None)
        self._settle(row)

    def grow(self, size: int) -> None:
        """Make room for this many rows."""
        more = size - self.slots.size
        self.slots = np.concatenate([self.slots, np.zeros(more, dtype=np.int64)])
        self.shown = np.concatenate([self.shown, np.zeros(more, dtype=np.int64)])
        self.held = np.concatenate([self.held, np.zeros(more, dtype=np.int64)])
        self.idle_since = np.concatenate([self.idle_since, np.full(more, np.inf)])

    def _show(self, row: int, running: frozenset[str], waiting: frozenset[str], slots: int) -> None:
        _replace(self._running, self._rows_running, row, running)
        _replace(self._waiting, self._rows_waiting, row, waiting)
        self.slots[row] = min(max(slots, 0), MAX_ADAPTERS)
        self.shown[row] = len(running) + len(waiting)

    def _note(self, adapter: str) -> None:
        if adapter not in self._known:
            self._known[adapter] = None
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def _use(self, row: int, adapter: str, at: float) -> None:
        resident = self._resident.setdefault(row, {})
        if resident.pop(adapter, None) is None:
            self._rows_resident.setdefault(adapter, set()).add(row)
        resident[adapter] = at

    def _drop(self, row: int, adapter: str) -> None:
        del self._resident[row][adapter]
        rows = self._rows_resident[adapter]
        rows.discard(row)
        if not rows:
            del self._rows_resident[adapter]

    def _settle(self, row: int) -> None:
        """Unload as the server does while it has more adapters than slots; set `held` and `idle_since`.

        A running adapter is never unloaded, and neither is the one used last: it may wait for a slot.
        """
        resident = self._resident.get(row, {})
        running, waiting = self._running.get(row, _NONE), self._waiting.get(row, _NONE)
        surplus = len(resident) - max(int(self.slots[row]), 1)
        if surplus > 0:
            for adapter in [each for each in list(resident)[:-1] if each not in running][:surplus]:
                self._drop(row, adapter)
        self.held[row] = len(resident) + sum(adapter not in resident for adapter in waiting)
        self.idle_since[row] = next((at for each, at in resident.items() if each not in running), np.inf)


def _bounded(adapters: frozenset[str]) -> frozenset[str]:
    return adapters if len(adapters) <= MAX_ADAPTERS else frozenset(sorted(adapters)[:MAX_ADAPTERS])


def _replace(
    of_row: dict[int, frozenset[str]], rows_of: dict[str, set[int]], row: int, new: frozenset[str]
) -> None:
    """Replace a row's set of adapters, and its place in the sets of rows."""
    old = of_row.get(row, _NONE)
    if old == new:
        return
    for adapter in old - new:
        rows = rows_of[adapter]
        rows.discard(row)
        if not rows:
            del rows_of[adapter]
    for adapter in new - old:
        rows_of.setdefault(adapter, set()).add(row)
    if new:
        of_row[row] = new
    else:
        of_row.pop(row, None)
