"""Deadlines of many calls by one timer: when the earliest is due, it checks all open calls."""

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """One timer for a server or a channel.

    `scan(now)` ends the calls that are due and returns the earliest deadline that is left. A call that ends
    before its deadline does not touch the timer, which may then find nothing due, at most once per
    `granularity` seconds.
    """

    __slots__ = ("_due", "_granularity", "_handle", "_loop", "_scan")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, scan: Callable[[float], float | None], granularity: float
    ) -> None:
        self._loop = loop
        self._scan = scan
        self._granularity = granularity
        self._due: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def note(self, deadline: float) -> None:
        """Make sure that the timer fires by `deadline` (loop time), or a granule later."""
        if self._due is not None:
            if self._due <= deadline:
                return
            if self._handle is not None:
                self._handle.cancel()
        self._due = deadline
        at = max(deadline, self._loop.time() + self._granularity)
        self._handle = self._loop.call_at(at, self._fire)

    def stop(self) -> None:
        """Fire no more."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due = None

    def _fire(self) -> None:
        self._handle = self._due = None
        following = self._scan(self._loop.time())
        if following is not None:
            self.note(following)
