"""Health of the streams of a watch thread: which are open, and whether the thread still reopens them. Pure.

The thread records its requests and their answers; the controller reads them. Times are seconds of any
monotonic clock.
"""

from collections.abc import Callable
from math import inf
from typing import Final

SERVER_TIMEOUT: Final = 290
"""Seconds after which the API server ends a watch request; kopf then sends the next one."""
UNTENDED_AFTER: Final = 15.0
"""Seconds without an open stream and without a request after which the thread counts as dead."""
OVERDUE_AFTER: Final = SERVER_TIMEOUT + 60.0
"""Seconds after which the server (at SERVER_TIMEOUT) or the reader must have ended a stream."""
DOWN_AFTER: Final = 2.0
"""Seconds without an open stream after which a kind counts as not watched."""
_LONGEST_RETRY_AFTER: Final = 120.0
_LONGEST_REQUEST: Final = 120.0


class StreamHealth:
    """The stream of one kind, in one namespace or in all."""

    __slots__ = ("_asking", "_due_by", "_is_open", "_last_open", "_opened", "_was_open", "problem")

    def __init__(self, now: float) -> None:
        self._last_open = now
        self._was_open = False
        self._opened = now
        self._due_by = now
        self._asking = 0
        self._is_open: Callable[[], bool] = lambda: False
        self.problem = "not asked yet"
        """Why there is no stream; "" when there is one."""

    def asked(self, now: float) -> None:
        """Note that a list or watch request for the kind was sent."""
        self._asking += 1
        self._due_by = now

    def answered(self, now: float, problem: str = "", retry_after: float = 0.0) -> None:
        """Note that the request ended. `retry_after` is the answer's Retry-After, in seconds."""
        self._asking -= 1
        self._due_by = now + min(retry_after, _LONGEST_RETRY_AFTER)
        self.problem = problem

    def opened(self, now: float, is_open: Callable[[], bool]) -> None:
        """Note that a watch was accepted; `is_open` returns True while its stream is open."""
        self._opened = self._last_open = now
        self._was_open = True
        self._is_open = is_open

    def look(self, now: float) -> bool:
        """Return whether the stream is open now."""
        if self._is_open():
            self._last_open = now
            return True
        return False

    def down_for(self, now: float) -> float:
        """Return for how many seconds no stream has been open; infinite when none ever was.

        Infinite, because a count from the thread's start would pass as healthy after every restart.
        """
        if self.look(now):
            return 0.0
        return now - self._last_open if self._was_open else inf

    def neglect(self, now: float) -> str:
        """Return why the thread counts as dead, from this stream; "" when it does not."""
        if self.look(now):
            late = now - self._opened
            return f"a stream has been open for {late:.0f} s" if late > OVERDUE_AFTER else ""
        if self._asking > 0:
            asking = now - self._due_by
            return f"a request has been under way for {asking:.0f} s" if asking > _LONGEST_REQUEST else ""
        idle = now - max(self._due_by, self._last_open)
        return f"no stream and no request for {idle:.0f} s" if idle > UNTENDED_AFTER else ""
