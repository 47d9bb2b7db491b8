"""The spread of iteration times, with sums over any number of iterations in constant time. Pure."""

from collections.abc import Callable

#: Factors drawn at the start; they repeat after this many iterations.
PERIOD = 509


class Jitter:
    """A repeating list of factors within 1 +- `spread`, and a position in it: the next iteration's factor."""

    __slots__ = ("_at", "_plain", "_weighted")

    def __init__(self, spread: float, uniform: Callable[[], float]) -> None:
        self._at = 0
        # Sums of f[x] and x * f[x] for x below the index, over two periods.
        self._plain = [0.0]
        self._weighted = [0.0]
        factors = [1 + spread * (2 * uniform() - 1) if spread else 1.0 for _ in range(PERIOD)]
        for index in range(2 * PERIOD):
            factor = factors[index % PERIOD]
            self._plain.append(self._plain[-1] + factor)
            self._weighted.append(self._weighted[-1] + index * factor)

    def sums(self, count: int) -> tuple[float, float]:
        """Return the sums of f_n and of n * f_n over the next `count` iterations, n counted from 1."""
        begin = self._at
        if count < PERIOD:
            end = begin + count
            plain = self._plain[end] - self._plain[begin]
            return plain, self._weighted[end] - self._weighted[begin] - (begin - 1) * plain
        rounds, rest = divmod(count, PERIOD)
        plain = self._plain[begin + rest] - self._plain[begin]
        weighted = self._weighted[begin + rest] - self._weighted[begin] - (begin - 1) * plain
        # Each whole period before the rest adds its own sums, and shifts the weights after it.
        whole = self._plain[PERIOD]
        once = self._weighted[begin + PERIOD] - self._weighted[begin] - (begin - 1) * whole
        weighted += rounds * PERIOD * plain + rounds * once
        weighted += whole * PERIOD * (rounds * (rounds - 1) // 2)
        return plain + rounds * whole, weighted

    def pass_by(self, count: int) -> None:
        """Move the position by `count` iterations."""
        self._at = (self._at + count) % PERIOD
