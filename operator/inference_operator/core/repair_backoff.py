"""Growing pauses for a pool that another writer changes back after every repair. Pure.

Only FORGIVEN_AFTER seconds without a repair reset the count. Passes that repair nothing do not: every event
of a Deployment causes one, also between two repairs.
"""

from typing import Final

from inference_operator.core.kinds import PoolKey

FREE_REPAIRS: Final = 10
"""Repairs in a row that are followed by no pause."""
LONGEST_PAUSE: Final = 60.0
"""Longest pause, in seconds; the pause doubles with every repair after FREE_REPAIRS."""
FORGIVEN_AFTER: Final = 2 * LONGEST_PAUSE
"""Seconds without a repair after which the count starts anew."""


class RepairBackoff:
    """Counts repairs in a row, by pool."""

    __slots__ = ("_repairs",)

    def __init__(self) -> None:
        self._repairs: dict[PoolKey, tuple[int, float]] = {}

    def quiet(self, key: PoolKey, now: float) -> None:
        """Note a pass that found nothing to repair, at a time in seconds of any monotonic clock."""
        _, last = self._repairs.get(key, (0, now))
        if now - last >= FORGIVEN_AFTER:
            self.forget(key)

    def repaired(self, key: PoolKey, now: float) -> float:
        """Note a pass that repaired something; return for how many seconds to leave the pool alone."""
        self.quiet(key, now)
        count, _ = self._repairs.get(key, (0, now))
        self._repairs[key] = (count + 1, now)
        excess = count + 1 - FREE_REPAIRS
        return 0.0 if excess <= 0 else min(LONGEST_PAUSE, 2.0 ** min(excess, 16))

    def forget(self, key: PoolKey) -> None:
        """Drop the count, because FORGIVEN_AFTER has passed or the pool is gone."""
        self._repairs.pop(key, None)
