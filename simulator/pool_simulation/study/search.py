"""Searches over simulated points: the smallest count that suffices, the highest load that is borne. Pure."""

from collections.abc import Callable
from typing import Final

#: Loads above this multiple of the workload are not tried.
MOST_LOAD: Final = 4.0
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


def highest_load(bears: Callable[[float], bool], *, most: float = MOST_LOAD) -> float:
    """Return the highest scale in [1, most] of the load that is borne, to LOAD_STEP. 1.0 counts as borne.

    Returns `most` itself only if that is borne: then the limit lies above it.
    """
    low, high = 1.0, 1.25
    while bears(high):
        if high == most:
            return most
        low, high = high, min(high * 1.25, most)
    while high / low > LOAD_STEP:
        middle = (low * high) ** 0.5
        if bears(middle):
            low = middle
        else:
            high = middle
    return low
