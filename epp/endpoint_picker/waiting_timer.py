"""Calls a router's `advance` when a waiting decision is due, from one timer of the event loop."""

import asyncio

from endpoint_picker.routing import PoolRouter


class WaitingTimer:
    """Calls `advance` of one router. The router's clock must run at the event loop's rate."""

    __slots__ = ("_due", "_handle", "_loop", "_router")

    def __init__(self, router: PoolRouter, loop: asyncio.AbstractEventLoop) -> None:
        self._router = router
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        router.wake_at = self.arm

    def arm(self, due: float) -> None:
        """Call `advance` at `due`, in seconds of the router's clock, unless the timer is set for earlier."""
        if self._handle is not None:
            if self._due <= due:
                return
            self._handle.cancel()
        self._due = due
        # Never call `advance` here, even if it is due: `Router.decide` must return before `resume` is called.
        self._handle = self._loop.call_later(max(0.0, due - self._router.pool.clock()), self._fire)

    def close(self) -> None:
        """Stop the timer; waiting decisions are not answered."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        due = self._router.advance()
        if due is not None:
            self.arm(due)
