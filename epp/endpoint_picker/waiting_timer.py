"""Calls a router's `advance` when something that waits is due: one timer of the event loop, re-armed."""

import asyncio

from endpoint_picker.routing import PoolRouter


class WaitingTimer:
    """Drives the waiting decisions of one router, whose clock must be the loop's or run alongside it."""

    __slots__ = ("_due", "_handle", "_loop", "_router")

    def __init__(self, router: PoolRouter, loop: asyncio.AbstractEventLoop) -> None:
        self._router = router
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        router.wake_at = self.arm

    def arm(self, due: float) -> None:
        """Have the router advanced at `due`, seconds of its clock, unless that happens earlier anyway."""
        if self._handle is not None:
            if self._due <= due:
                return
            self._handle.cancel()
        self._due = due
        # Not at once, even when it is due: `Router.decide` must return before `resume` is called.
        self._handle = self._loop.call_later(max(0.0, due - self._router.pool.clock()), self._fire)

    def close(self) -> None:
        """Stop; what waits stays as it is."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        due = self._router.advance()
        if due is not None:
            self.arm(due)
