"""A work queue of keys: each waits at most once, runs at most once at a time, and backs off when it fails.

Two urgencies: urgent keys, which an event added, go before routine keys, which a resync added. Adding and
taking cost O(log n). Pure: the time, in seconds of any monotonic clock, is an argument.
"""

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

FIRST_BACK_OFF: Final = 0.5
"""Seconds until a key that failed once is tried again; doubles with every further failure."""
MOST_BACK_OFF: Final = 120.0
"""The longest back-off, in seconds."""
ROUTINE_SHARE: Final = 8
"""One take in this many prefers routine keys, so that a flood of events cannot starve them."""

Key = TypeVar("Key", bound=Hashable)


class _Waiting(Generic[Key]):
    """The keys of one urgency: when each is due, and a heap of those times.

    `due` decides. A heap entry that differs from it is stale, and is dropped when it comes to the top.
    """

    __slots__ = ("_heap", "_order", "due")

    def __init__(self) -> None:
        self.due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = count()

    def add(self, key: Key, due: float) -> None:
        """Make the key due at that time, or leave it due earlier if it already is."""
        held = self.due.get(key)
        if held is None or due < held:
            self.move(key, due)

    def move(self, key: Key, due: float) -> None:
        """Make the key due at exactly that time."""
        self.due[key] = due
        heappush(self._heap, (due, next(self._order), key))

    def head(self, running: set[Key]) -> tuple[float, Key] | None:
        """Return time and key of the earliest not running; running keys leave the heap until `resume`."""
        while self._heap:
            due, _, key = self._heap[0]
            if self.due.get(key) == due and key not in running:
                return due, key
            heappop(self._heap)
        return None

    def resume(self, key: Key) -> None:
        """Put a key that has stopped running back on the heap, in case `head` removed it meanwhile."""
        if (due := self.due.get(key)) is not None:
            heappush(self._heap, (due, next(self._order), key))


class WorkQueue(Generic[Key]):
    """Keys, each with the time at which it is due.

    A key that is added while it runs stays due, and runs once more after `done` or `failed`: the run may have
    read the state from before the event.
    """

    __slots__ = ("_failures", "_not_before", "_routine", "_running", "_takes", "_urgent")

    def __init__(self) -> None:
        self._urgent: _Waiting[Key] = _Waiting()
        self._routine: _Waiting[Key] = _Waiting()
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._takes = 0

    def __len__(self) -> int:
        return len(self._urgent.due.keys() | self._routine.due.keys())

    def backlog(self, now: float) -> int:
        """Return how many keys are due and not running; O(n)."""
        due = {key for each in (self._urgent, self._routine) for key, at in each.due.items() if at <= now}
        return len(due - self._running)

    def add(self, key: Key, due: float, *, routine: bool = False) -> None:
        """Make the key due at that time, or leave it due earlier if it already is.

        A routine key waits behind all urgent keys that are due.
        """
        due = max(due, self._not_before.get(key, due))
        (self._routine if routine else self._urgent).add(key, due)

    def take(self, now: float) -> Key | None:
        """Return the most urgent key that has been due longest and mark it running; None when none is due."""
        self._takes += 1
        order = (self._urgent, self._routine)
        for each in reversed(order) if self._takes % ROUTINE_SHARE == 0 else order:
            found = each.head(self._running)
            if found is not None and found[0] <= now:
                key = found[1]
                self._urgent.due.pop(key, None)
                self._routine.due.pop(key, None)
                self._not_before.pop(key, None)
                self._running.add(key)
                return key
        return None

    def waiting(self, key: Key) -> bool:
        """Return whether the key is due as urgent, also while it runs; a routine key does not count."""
        return key in self._urgent.due

    def next_due(self) -> float | None:
        """Return when the next key that is not running becomes due; None when there is none."""
        heads = (self._urgent.head(self._running), self._routine.head(self._running))
        return min((found[0] for found in heads if found is not None), default=None)

    def done(self, key: Key, again_at: float | None = None, *, not_before: float | None = None) -> None:
        """Note that the run of the key succeeded.

        It runs again at `again_at`, or sooner if it is added for an earlier time, but never before
        `not_before`.
        """
        self._failures.pop(key, None)
        if not_before is not None:
            self._not_before[key] = not_before
            for each in (self._urgent, self._routine):
                if (due := each.due.get(key)) is not None and due < not_before:
                    each.move(key, not_before)
        self._stopped(key)
        if again_at is not None:
            self.add(key, again_at)

    def failed(self, key: Key, now: float) -> float:
        """Note that the run of the key failed; return the back-off in seconds.

        The key runs again after its back-off, or sooner if it is added for an earlier time.
        """
        self._stopped(key)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        back_off = min(MOST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(failures, 16))
        self.add(key, now + back_off)
        return back_off

    def _stopped(self, key: Key) -> None:
        self._running.discard(key)
        self._urgent.resume(key)
        self._routine.resume(key)
