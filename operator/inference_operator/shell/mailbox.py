"""Handing items from a thread to an event loop, with at most one wake-up of the loop pending.

Every `call_soon_threadsafe` writes a byte into the pipe that wakes the loop. Signals use the same pipe. One
call for each of thousands of events would fill it, and a SIGTERM that meets a full pipe is lost.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

#: Items delivered in one turn of the loop, so that a flood does not block its other tasks.
_AT_ONCE: Final = 200

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Items by key: a newer item replaces an older one of its key that was not delivered yet.

    So no more items wait than there are keys, even if the loop is slow.
    """

    __slots__ = ("_deliver", "_lock", "_loop", "_scheduled", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Item], None]) -> None:
        """`deliver` is called in the loop, once for each item."""
        self._loop = loop
        self._deliver = deliver
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Item] = {}
        self._scheduled = False

    def put(self, key: Hashable, item: Item) -> None:
        """Add an item, from any thread; it is dropped once the loop is closed."""
        with self._lock:
            self._waiting[key] = item
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            log.debug("the loop has been closed")

    def _drain(self) -> None:
        with self._lock:
            keys = list(self._waiting)[:_AT_ONCE]
            items = [self._waiting.pop(key) for key in keys]
            self._scheduled = more = bool(self._waiting)
        if more:
            self._loop.call_soon(self._drain)
        for item in items:
            try:
                self._deliver(item)
            except Exception:
                # The other items must not be lost with this one.
                log.exception("an event could not be taken in")
