"""How many rows a second are taken: a bucket of one second's rows. Pure."""


class RowLimit:
    """At most `rate` rows a second, after a pause as many at once."""

    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left = rate
        self._at = 0.0

    def allows(self, rows: int, now: float) -> bool:
        """Return whether a batch may be taken at `now`, seconds of a monotonic clock, and count it if so."""
        if now > self._at:
            self._left = min(self._rate, self._left + (now - self._at) * self._rate)
            self._at = now
        # A batch larger than a second's rows is taken when the bucket is full.
        if self._left < min(rows, self._rate):
            return False
        self._left -= rows
        return True
