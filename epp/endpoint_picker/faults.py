"""Logs faults that may recur with every request or tick, with their stack and at a bounded rate."""

import logging
from math import inf
from typing import Final

#: Seconds between two log lines of one `FaultLog`; faults in between are counted.
INTERVAL_S: Final = 30.0


class FaultLog:
    """Logs the faults of one place in the code."""

    __slots__ = ("_logger", "_message", "_next", "_untold")

    def __init__(self, logger: logging.Logger, message: str) -> None:
        self._logger = logger
        self._message = message
        self._next = -inf
        self._untold = 0

    def note(self, fault: Exception, now: float, **extra: object) -> None:
        """Log a fault with its stack, or only count it; `now` is monotonic, in seconds."""
        if now < self._next:
            self._untold += 1
            return
        self._logger.error(self._message, exc_info=fault, extra={**extra, "untold": self._untold})
        self._next = now + INTERVAL_S
        self._untold = 0
