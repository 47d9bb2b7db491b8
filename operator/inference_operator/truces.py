"""Growing pauses for a pool that somebody changes back each time it is repaired. Pure."""

from typing import Final

from inference_operator.kinds import PoolKey

FREE_REPAIRS: Final = 5
"""Repairs in a row, without one quiet pass between them, that are made at once."""
LONGEST_PAUSE: Final = 60.0
"""Seconds; the pause doubles with every further repair up to this."""


class Truces:
    """Counts repairs in a row, by pool."""

    __slots__ = ("_repairs",)

    def __init__(self) -> None:
        self._repairs: dict[PoolKey, int] = {}

    def quiet(self, key: PoolKey) -> None:
        """A pass found nothing to repair."""
        self._repairs.pop(key, None)

    def repaired(self, key: PoolKey) -> float:
        """A pass repaired something; return for how many seconds to let the pool be now."""
        count = self._repairs[key] = self._repairs.get(key, 0) + 1
        excess = count - FREE_REPAIRS
        return 0.0 if excess <= 0 else min(LONGEST_PAUSE, 2.0 ** min(excess, 16))
