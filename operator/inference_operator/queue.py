"""A work queue of keys: each waits at most once, runs at most once at a time, and backs off when it fails.

Pure: the time, in seconds of any monotonic clock, is an argument.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FIRST_BACK_OFF: Final = 0.5
"""Seconds until a key that failed once is tried again; doubles with every further failure."""
MOST_BACK_OFF: Final = 120.0
"""The longest back-off, in seconds."""

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """Keys, each with the time at which it is due.

    A key that is added while it runs is due again once it is done, so that nothing that happened during a
    run is missed.
    """

    __slots__ = ("_due", "_failures", "_not_before", "_running")

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: Key, due: float) -> None:
        """Make the key due at that time, or leave it due earlier if it already is."""
        due = max(due, self._not_before.get(key, due))
        held = self._due.get(key)
        if held is None or due < held:
            self._due[key] = due

    def take(self, now: float) -> Key | None:
        """Return the key that has been due longest and mark it running; None when none is due."""
        ready = [(due, key) for key, due in self._due.items() if due <= now and key not in self._running]
        if not ready:
            return None
        _, key = min(ready, key=lambda pair: pair[0])
        del self._due[key]
        self._not_before.pop(key, None)
        self._running.add(key)
        return key

    def waiting(self, key: Key) -> bool:
        """Return whether something has asked for the key, also while it runs."""
        return key in self._due

    def next_due(self) -> float | None:
        """Return when the next key that is not running becomes due; None when there is none."""
        return min((due for key, due in self._due.items() if key not in self._running), default=None)

    def done(self, key: Key, again_at: float | None = None, *, not_before: float | None = None) -> None:
        """The run of the key succeeded.

        It runs again at `again_at` if nothing asks for it sooner, and not before `not_before` whatever asks.
        """
        self._running.discard(key)
        self._failures.pop(key, None)
        if not_before is not None:
            self._not_before[key] = not_before
            if key in self._due:
                self._due[key] = max(self._due[key], not_before)
        if again_at is not None:
            self.add(key, again_at)

    def failed(self, key: Key, now: float) -> float:
        """The run of the key failed: it runs again after its back-off, or sooner when something asks for it.

        Returns the back-off in seconds.
        """
        self._running.discard(key)
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        back_off = min(MOST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(count, 16))
        self.add(key, now + back_off)
        return back_off
