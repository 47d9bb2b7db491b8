"""Runs the points of one pool under seeds, each once."""

from collections.abc import Callable, Iterable, Sequence

from pool_simulation.study.runs import Outcome, Point, Setup
from pool_simulation.study.workers import Workers


class Progress:
    """Counts runs, over all runners of a command."""

    def __init__(self, shown: Callable[[int, int], None] = lambda done, asked: None) -> None:
        """`shown` is called with the runs done and the runs asked for so far."""
        self._shown = shown
        self._done = self._asked = 0

    def asked(self, runs: int) -> None:
        """Note that more runs are wanted."""
        self._asked += runs
        self._shown(self._done, self._asked)

    def done(self) -> None:
        """Note that a run has ended."""
        self._done += 1
        self._shown(self._done, self._asked)


class Runner:
    """Simulates points under a fixed list of seeds, and remembers them."""

    def __init__(self, setup: Setup, seeds: Sequence[int], workers: Workers, progress: Progress) -> None:
        self._setup = setup
        self._seeds = tuple(seeds)
        self._workers = workers
        self._progress = progress
        self._known: dict[Point, tuple[Outcome, ...]] = {}

    def outcomes(self, points: Iterable[Point]) -> list[tuple[Outcome, ...]]:
        """Return the outcomes of each point, one for each seed in order. Raises as `Workers.outcomes`."""
        wanted = list(points)
        new = [point for point in dict.fromkeys(wanted) if point not in self._known]
        tasks = [(self._setup, point, seed) for point in new for seed in self._seeds]
        self._progress.asked(len(tasks))
        found: list[Outcome] = []
        for outcome in self._workers.outcomes(tasks):
            found.append(outcome)
            self._progress.done()
        width = len(self._seeds)
        for number, point in enumerate(new):
            self._known[point] = tuple(found[number * width : (number + 1) * width])
        return [self._known[point] for point in wanted]
