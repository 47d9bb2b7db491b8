"""How many requests may be in flight: additive increase, multiplicative decrease. Pure.

The subscriber and the pool simulation drive this code. Three things move the limit:

- answers: each one raises it, by one while nothing was refused yet and by `1 / limit` afterwards; a 429 or
  503 multiplies it by `decrease`, once for all requests that were sent before the last decrease;
- the picker's metrics: a pool below saturation raises it by a part of itself at each reading, a saturated one
  lowers it. Where the picker says how many requests of a negative priority wait in its queue, the limit goes
  to what the pool has taken and a few that wait, so that each place that chat leaves is used at once;
- bounds: `most`, and, while no picker shows its saturation, the concurrency that replicas and their measured
  throughput justify (`throughput.py`).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from batch_subscriber.throughput import Throughput

#: Seconds after which a reading of the picker's metrics does not count any more.
READING_LIFE_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """How the limit moves."""

    first: int = 4
    """Requests in flight at the start."""
    most: int = 256
    """Requests in flight at most."""
    decrease: float = 0.7
    """Factor of the limit at a refusal, or at a reading of a saturated pool."""
    growth: float = 0.2
    """Part of the limit that is added at a reading of a pool that is not saturated."""
    target: float = 1.0
    """Saturation from which on the limit does not grow."""
    queued: float = 0.1
    """Part of the limit, beside two requests, that may wait in the picker's queue without a decrease."""
    stretch: float = 4.0
    """Longest mean time of a request over the shortest one; see `throughput.py`."""


class Outcome(Enum):
    """How a request ended, as far as the flow is concerned."""

    SERVED = "served"
    BUSY = "busy"
    """429 or 503: the pool asks to come later."""
    FAILED = "failed"
    """Any other error, or no answer."""
    ABORTED = "aborted"
    """Given up here."""


class Ticket(NamedTuple):
    """A request in flight."""

    sent_at: float
    epoch: int
    """Decreases before it was sent."""


class Reading(NamedTuple):
    """What a page of the picker's metrics says. None: it does not say."""

    saturation: float | None = None
    """1 and above: the pool is full."""
    queued: int | None = None
    """Requests of negative priority that wait in the picker's queue."""
    replicas: int | None = None
    """Endpoints that are ready."""


class Flow:
    """The limit of one gateway, and what is in flight. Times are seconds of a monotonic clock."""

    __slots__ = (
        "_epoch", "_is_probing", "_limit", "_now", "_read_at", "_reading", "_replicas", "_resume_at",
        "_settings", "_throughput", "in_flight",
    )  # fmt: skip

    def __init__(self, settings: FlowSettings) -> None:
        self._settings = settings
        self._limit = float(min(settings.first, settings.most))
        self._throughput = Throughput(settings.stretch)
        self._is_probing = True
        self._epoch = 0
        self._resume_at = float("-inf")
        self._reading = Reading()
        self._read_at = float("-inf")
        self._now = float("-inf")
        self._replicas: int | None = None
        self.in_flight = 0
        """Requests that were sent and have not ended."""

    @property
    def limit(self) -> int:
        """Return the requests that may be in flight, at least 1."""
        bound = min(self._limit, float(self._settings.most))
        if self.reading(self._now).saturation is None:
            justified = self._throughput.bound(self._replicas)
            if justified is not None:
                bound = min(bound, justified)
        return max(1, int(bound))

    @property
    def paused_until(self) -> float:
        """Return the time before which nothing may be sent."""
        return self._resume_at

    def room(self, now: float) -> int:
        """Return how many requests may be sent now."""
        self._now = now
        return 0 if now < self._resume_at else max(0, self.limit - self.in_flight)

    def sent(self, now: float) -> Ticket:
        """Note that a request is sent."""
        self.in_flight += 1
        return Ticket(now, self._epoch)

    def ended(self, now: float, ticket: Ticket, outcome: Outcome, wait_s: float = 0.0) -> None:
        """Note the end of a request.

        `wait_s` is how long a refused request has to wait. Nothing else is sent until then either when no
        request is in flight that could show room earlier.
        """
        self._now = now
        was_limited = self.in_flight >= self.limit
        self.in_flight -= 1
        if outcome is Outcome.SERVED:
            self._throughput.served(now, now - ticket.sent_at, self._replicas)
            if was_limited:
                self._limit += 1.0 if self._is_probing else 1.0 / max(self._limit, 1.0)
        elif outcome is Outcome.BUSY:
            self._throughput.idle()
            if ticket.epoch == self._epoch:
                self._lower()
            if self.in_flight == 0:
                self._resume_at = max(self._resume_at, now + wait_s)
        else:
            self._throughput.idle()
        self._limit = min(self._limit, float(self._settings.most))

    def read(self, now: float, reading: Reading) -> None:
        """Take a page of the picker's metrics."""
        self._now = now
        self._take_replicas(reading.replicas)
        self._reading, self._read_at = reading, now
        if reading.saturation is None:
            return
        settings = self._settings
        queued = reading.queued
        allowed = 2 + settings.queued * self._limit
        is_used = self.in_flight >= self.limit
        if reading.saturation >= 1.0 and queued is None:
            self._lower()
        elif reading.saturation >= 1.0 and queued is not None and queued > allowed:
            taken = self.in_flight - queued
            self._limit = max(1.0, taken + allowed / 2, self._limit * settings.decrease)
            self._is_probing = False
        elif reading.saturation >= settings.target and queued is not None:
            if is_used:
                self._limit += max(0.0, allowed / 2 - queued)
        elif reading.saturation < settings.target and is_used and (queued or 0) <= allowed:
            self._limit += max(1.0, settings.growth * self._limit)
        self._limit = min(self._limit, float(settings.most))

    def reading(self, now: float) -> Reading:
        """Return the last reading while it is young enough, else an empty one."""
        return self._reading if now <= self._read_at + READING_LIFE_S else Reading()

    def _lower(self) -> None:
        """Lower the limit: from what is in flight, since an unused limit says nothing about the pool."""
        self._is_probing = False
        self._epoch += 1
        self._limit = max(1.0, min(self._limit, self.in_flight + 1.0) * self._settings.decrease)

    def _take_replicas(self, replicas: int | None) -> None:
        before, self._replicas = self._replicas, replicas
        if before and replicas is not None and replicas < before:
            # A smaller pool gets its share at once. A larger one is found out by growth.
            self._limit = max(1.0, self._limit * replicas / before)
