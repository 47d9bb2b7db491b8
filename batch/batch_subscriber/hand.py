"""The jobs that one process holds. Pure; the clock is passed in."""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from batch_subscriber.jobs import Job
from batch_subscriber.queues.interface import Delivery

#: Part of a visibility time-out after which a job is extended.
EXTEND_AFTER: Final = 1 / 3


class Held:
    """A job in hand."""

    __slots__ = ("delivery", "extended_at", "is_cancelled", "is_lost", "is_under_way", "since", "stop")

    def __init__(self, delivery: Delivery, now: float) -> None:
        self.delivery = delivery
        self.since = now
        """When the delivery came."""
        self.extended_at = now
        self.is_under_way = False
        """It is sent, or its end is being written."""
        self.is_cancelled = False
        self.is_lost = False
        """Its time-out has passed: another process may have it."""
        self.stop: str = ""
        """Why its request is given up; "" while it is not."""

    @property
    def job(self) -> Job:
        """Return the job."""
        return self.delivery.job

    @property
    def key(self) -> tuple[str, str]:
        """Return id and generation."""
        return self.job.id, self.job.generation


class Hand:
    """Jobs in hand: ready to be sent, waiting until a time, or under way."""

    __slots__ = ("_delayed", "_held", "_order", "_ready", "size")

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Held] = {}
        self._ready: deque[Held] = deque()
        self._delayed: list[tuple[float, int, Held]] = []
        self._order = 0
        self.size = 0
        """Bytes of the bodies."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    @property
    def ready(self) -> int:
        """Return how many may be sent at once."""
        return len(self._ready)

    def take(self, delivery: Delivery, now: float, *, is_cancelled: bool = False) -> None:
        """Take a job, ready to be sent. One that is in hand goes on under its new delivery."""
        held = self._held.get((delivery.job.id, delivery.job.generation))
        if held is not None:
            held.delivery = delivery
            held.since = held.extended_at = now
            held.is_lost = False
            return
        held = Held(delivery, now)
        held.is_cancelled = is_cancelled
        self._held[held.key] = held
        self._ready.append(held)
        self.size += len(delivery.job.body)

    def next(self, now: float) -> Held | None:
        """Return a job to send now, which is under way from here on; None: there is none."""
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heappop(self._delayed)[2])
        while self._ready:
            held = self._ready.popleft()
            if self._held.get(held.key) is held and not held.is_under_way:
                held.is_under_way = True
                return held
        return None

    def delay(self, held: Held, until: float) -> None:
        """Have a job that was under way wait until a time."""
        held.is_under_way = False
        self._order += 1
        heappush(self._delayed, (until, self._order, held))

    def next_due(self) -> float | None:
        """Return when the next waiting job may be sent; None: none waits."""
        return self._delayed[0][0] if self._delayed else None

    def remove(self, held: Held) -> None:
        """Let go of a job."""
        if self._held.get(held.key) is held:
            del self._held[held.key]
            self.size -= len(held.job.body)

    def to_extend(self, now: float, visibility_s: float, max_hold_s: float) -> list[Held]:
        """Return the jobs whose time-out is to be moved, and note that it is."""
        found = [
            held
            for held in self._held.values()
            if not held.is_lost
            and now - held.since < max_hold_s
            and now - held.extended_at >= visibility_s * EXTEND_AFTER
        ]
        for held in found:
            held.extended_at = now
        return found

    def lost(self, handles: set[str]) -> list[Held]:
        """Note the deliveries that are lost; return their jobs. Those that are not under way are let go."""
        found = [held for held in self._held.values() if held.delivery.handle in handles]
        for held in found:
            held.is_lost = True
            if not held.is_under_way:
                self.remove(held)
        return found

    def groups(self) -> set[str]:
        """Return the groups of the jobs in hand."""
        return {held.job.group for held in self._held.values() if held.job.group}
