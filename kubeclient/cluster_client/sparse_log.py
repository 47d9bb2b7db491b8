"""Bounds the log lines about one watched collection. Pure: the time is passed in."""

from math import inf
from typing import Final

#: Seconds between two logged faults; faults in between are counted.
INTERVAL_S: Final = 30.0


class SparseLog:
    """At most one fault and one recovery in INTERVAL_S; a fault that lasts is written once."""

    __slots__ = ("_next", "_unwritten", "_written")

    def __init__(self) -> None:
        self._written = ""
        self._next = -inf
        self._unwritten = 0

    def fault(self, text: str, now: float) -> str | None:
        """Return the line to write, None for none."""
        if text == self._written:
            return None
        if now < self._next:
            self._unwritten += 1
            return None
        line = f"{text} ({self._unwritten} faults before this one not logged)" if self._unwritten else text
        self._written, self._next, self._unwritten = text, now + INTERVAL_S, 0
        return line

    def recovered(self) -> bool:
        """Return whether to log a recovery: only after a logged fault."""
        was, self._written = bool(self._written), ""
        return was
