"""Compares one benchmark of two trees: CPU ratios with their 95 % intervals, from pairs of fresh processes.

`python bench/decision.py --against DIR` and `python bench/exchange.py --against DIR` use it. Every pair
starts a process of each tree, the order alternating; each measures all figures, and the ratio of the two is
one sample, so that the effect of a process's memory layout is part of the spread. Pairs are added until every
interval is narrower than `--width`.

Prints one JSON line a figure: `value` is this tree's CPU over the other's, `interval` its 95 % interval.

A tree without workers of its own, from before they came, is measured by those in `bench/before`; both trees
are measured by this tree's `bench/replay.py`, whose messages must be the same. The trees'
packages are found by their folders: `python bench/paired.py decision --against DIR` runs in any Python with
the dependencies.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
TREE: Final = HERE.parent
#: Names the tree that a worker measures; without it, the worker's own.
TREE_VARIABLE: Final = "HEADROOM_BENCH_TREE"
#: Highest upper end of an interval that counts as "not worse".
GOAL: Final = 1.05
LEAST_PAIRS: Final = 8

Figures = Mapping[str, float]
"""Figure to microseconds of process CPU."""


def measured_tree() -> Path:
    """Return the tree whose packages are on the path of this process."""
    return Path(os.environ.get(TREE_VARIABLE) or TREE)


def package_path(tree: Path) -> str:
    """Return the folders of the tree's packages, as PYTHONPATH takes them."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())
    roots = project["tool"]["hatch"]["build"]["dev-mode-dirs"]
    return os.pathsep.join(str(tree / root) for root in roots)


def plugin_loaders(tree: Path) -> dict[str, Callable[[], object]]:
    """Return loaders of the plugins in the tree's pyproject.toml: installed ones may be another tree's."""
    listed = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["entry-points"]

    def loader(target: str) -> Callable[[], object]:
        module, _, name = target.partition(":")
        return lambda: getattr(import_module(module), name)

    return {name: loader(target) for name, target in listed["headroom.epp.plugins"].items()}


def command(name: str, worker: Callable[[], Figures], alone: Callable[[], None]) -> None:
    """Run the benchmark `name` alone, against another tree (--against), or as a worker (--worker)."""
    parser = argparse.ArgumentParser(prog=f"bench/{name}.py", description=__doc__)
    _add_options(parser)
    parser.add_argument("--worker", action="store_true", help="measure once; print one JSON object")
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(worker()))
    elif given.against:
        compare(name, given.against.resolve(), given.width, given.max_pairs)
    else:
        alone()


def main() -> None:
    """Compare two trees by a Python without their packages: installed ones could belong to a third tree."""
    parser = argparse.ArgumentParser(prog="bench/paired.py", description=__doc__)
    parser.add_argument("name", help="the benchmark: decision, exchange, replay")
    _add_options(parser)
    given = parser.parse_args()
    if not given.against:
        parser.error("--against is missing")
    compare(given.name, given.against.resolve(), given.width, given.max_pairs)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", type=Path, help="another checkout, to be paired with this one")
    parser.add_argument("--width", type=float, default=0.04, help="widest interval (default 0.04: 4 points)")
    parser.add_argument("--max-pairs", type=int, default=150, help="pairs at most (default 150)")


def compare(name: str, other: Path, width: float, most_pairs: int) -> None:
    """Measure both trees in turn and print a line a figure."""
    trees = (TREE, other)
    samples: dict[str, list[tuple[float, float]]] = {}
    intervals: dict[str, tuple[float, float, float]] = {}
    for pair in range(most_pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        figures = {at: measure(name, trees[at]) for at in order}
        for figure in figures[0].keys() & figures[1].keys():
            samples.setdefault(figure, []).append((figures[0][figure], figures[1][figure]))
        if pair + 1 >= LEAST_PAIRS:
            intervals = {figure: interval(values) for figure, values in samples.items()}
            if all(high - low < width for _, low, high in intervals.values()):
                break
    for figure in sorted(intervals):
        ratio, low, high = intervals[figure]
        values = samples[figure]
        line: dict[str, Any] = {
            "figure": figure,
            "value": round(ratio, 4),
            "unit": "ratio",
            "interval": [round(low, 4), round(high, 4)],
            "pairs": len(values),
            "us": [round(statistics.median(side), 2) for side in zip(*values, strict=True)],
            "goal": GOAL,
            "ok": high <= GOAL,
            "narrow": high - low < width,
        }
        print(json.dumps(line))


def measure(name: str, tree: Path) -> Figures:
    """Run one worker in a process of its own, with the tree's packages first on its path."""
    script = tree / "bench" / f"{name}.py"
    if name == "replay":
        script = HERE / "replay.py"  # its messages must be the same for both trees
    elif "--worker" not in script.read_text() and "paired" not in script.read_text():
        script = HERE / "before" / f"{name}.py"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([package_path(tree), str(tree / "tests" / "support"), str(HERE)]),
        TREE_VARIABLE: str(tree),
    }
    done = subprocess.run(
        [sys.executable, str(script), "--worker"],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def interval(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the mean ratio and its 95 % t interval, over the logarithms of the pairs' ratios."""
    logs = [math.log(this / other) for this, other in pairs]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half = _t975(len(logs) - 1) * error
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _t975(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, by its expansion about the normal one (freedom >= 5)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


if __name__ == "__main__":
    main()
