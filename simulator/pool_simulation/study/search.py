"""Searches over simulated points: the smallest count that suffices, the highest load that is borne. Pure."""

from collections.abc import Callable
from typing import Final

#: The load of `highest_load` is known to this ratio.
LOAD_STEP: Final = 1.04


def smallest_count(suffices: Callable[[int], bool], *, start: int, most: int) -> int | None:
    """Return the smallest count in [1, most] that suffices; None if `most` does not.

    Takes it that more is never worse. Doubles from `start` until one suffices, then halves the interval.
    """
    low, high = 0, min(max(start, 1), most)
    while not suffices(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high


def highest_load(bears: Callable[[float], bool], *, most: float = 4.0) -> float:
    """Return the highest scale in [1, most] of the load that is borne, to LOAD_STEP. 1.0 counts as borne."""
    low, high = 1.0, 1.25
    while high < most and bears(high):
        low, high = high, high * 1.25
    high = min(high, most)
    while high / low > LOAD_STEP:
        middle = (low * high) ** 0.5
        if bears(middle):
            low = middle
        else:
            high = middle
    return low
