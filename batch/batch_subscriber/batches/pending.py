"""Lines of a batch that have no result yet. Pure."""

from collections.abc import Mapping, Sequence


class Pending:
    """The lines, counted from 0. The first ones are asked for most: jobs end roughly in order."""

    def __init__(self, total: int, done: Mapping[int, bool]) -> None:
        """Take all of `total` lines but those that are `done`; that one is true means that it failed."""
        self._failed = sum(done.values())
        self._completed = len(done) - self._failed
        self._lines = dict.fromkeys(line for line in range(total) if line not in done)
        self._from = 0

    def some(self, most: int, below: int) -> list[int]:
        """Return up to `most` lines below `below`: half the first ones, half in turns."""
        first: list[int] = []
        for line in self._lines:
            if line >= below or len(first) >= most // 2:
                break
            first.append(line)
        begin = max(self._from, first[-1] + 1) if first else 0
        turn: list[int] = []
        at = begin
        while at < below and len(turn) < most // 2:
            if at in self._lines:
                turn.append(at)
            at += 1
        self._from = 0 if at >= below else at
        return first + turn

    def note(self, found: Sequence[tuple[int, bool]]) -> None:
        """Take lines out."""
        for line, is_failed in found:
            if self._lines.pop(line, self) is None:
                self._failed += is_failed
                self._completed += not is_failed

    def counts(self) -> tuple[int, int]:
        """Return how many are completed, and failed."""
        return self._completed, self._failed

    def count_below(self, below: int) -> int:
        """Return how many lines below `below` have no result."""
        return sum(1 for line in self._lines if line < below)
