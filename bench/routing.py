"""Routing policies on simulated pools, beside oracles: how far each is from what could be had.

Finds each workload's knee (the load at which the default profile meets the SLOs of 90 % of the requests),
then runs every policy at parts of it, five seeds each. Prints JSON lines; writes tables and plots.

    python bench/routing.py                   5 policies, 4 workloads, 3 loads, 5 seeds
    python bench/routing.py --full            all policies and oracles, 6 loads, 8 seeds
    python bench/routing.py --out DIR         tables.md and figures.json there, for routing_plots.py
"""

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

import pool_runs
from pool_runs import LOADS, WORKLOADS, Made, Run, emit, over_seeds, table, values

from pool_simulation.figures import MORE_IS_BETTER, Interval, interval, paired
from pool_simulation.oracles import ORACLES

POLICIES: Final = ("random", "round-robin", "least-requests", "default", "precise")
FULL_POLICIES: Final = (*POLICIES, "precise-routed")
DEFAULT_ORACLES: Final = ("oracle-ttft", "oracle-sum", "oracle-cache")
FULL_LOADS: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Figures in which policies are compared with the oracle: name, heading, factor, digits.
COMPARED: Final = (
    ("ttft_mean_s", "TTFT mean, ms", 1000, 0),
    ("ttft_p99_s", "TTFT p99, ms", 1000, 0),
    ("tpot_mean_s", "TPOT mean, ms", 1000, 1),
    ("tpot_p90_s", "TPOT p90, ms", 1000, 1),
    ("e2e_mean_s", "E2E mean, s", 1, 2),
    ("e2e_p90_s", "E2E p90, s", 1, 2),
    ("goodput", "goodput, %", 100, 1),
    ("prefix_hit", "prefix hits, %", 100, 1),
)
#: Further figures of the tables.
SHOWN: Final = (
    ("ttft_p50_s", "TTFT p50, ms", 1000, 0),
    ("e2e_p99_s", "E2E p99, s", 1, 2),
    ("imbalance", "imbalance", 1, 2),
    ("refused", "shed", 1, 0),
)


class Grid:
    """The runs of one bench, by policy, workload and load."""

    def __init__(
        self,
        made: Made,
        knees: dict[str, float],
        loads: Sequence[float],
        seeds: range,
        policies: Sequence[str],
    ) -> None:
        self.made = made
        self.knees = knees
        self.loads = loads
        self.seeds = seeds
        self.policies = policies
        """All of them, oracles included."""

    def runs(self, policy: str, workload: str, load: float) -> list[Run]:
        """Return the runs of one cell, one a seed."""
        return runs_of(policy, workload, self.knees[workload] * load, self.seeds)

    def interval(self, name: str, policy: str, workload: str, load: float) -> Interval:
        """Return one figure of a cell."""
        return over_seeds(self.made, name, self.runs(policy, workload, load))

    def oracle(self, name: str, workload: str, load: float) -> str:
        """Return the best in the figure, on average over seeds, of the oracles and the joined policies."""
        best = self._best(name, workload, load, [policy for policy in self.policies if policy in ORACLES])
        return self._best(name, workload, load, [best, *self.joined(name, workload, load)])

    def joined(self, name: str, workload: str, load: float) -> list[str]:
        """Return the policies that beat every oracle in the figure by more than the interval."""
        best = self._best(name, workload, load, [policy for policy in self.policies if policy in ORACLES])
        others = [policy for policy in self.policies if policy not in ORACLES]
        return [policy for policy in others if self.behind(name, policy, workload, load, best).high < 0]

    def _best(self, name: str, workload: str, load: float, policies: Sequence[str]) -> str:
        sign = -1 if name in MORE_IS_BETTER else 1
        return min(policies, key=lambda policy: sign * self.interval(name, policy, workload, load).mean)

    def behind(self, name: str, policy: str, workload: str, load: float, oracle: str) -> Interval:
        """Return by how much a policy is worse than the oracle, as a part of its figure, paired by seed."""
        sign = -1 if name in MORE_IS_BETTER else 1
        mine = values(self.made, name, self.runs(policy, workload, load))
        best = values(self.made, name, self.runs(oracle, workload, load))
        scale = math.fsum(best) / len(best)
        if not scale:
            return interval([0.0] * len(best))
        difference = paired(mine, best)
        return Interval(sign * difference.mean / scale, difference.half / abs(scale))


def runs_of(policy: str, workload: str, scale: float, seeds: Iterable[int]) -> list[Run]:
    """Return one run for each seed."""
    return [Run(policy, workload, scale, seed) for seed in seeds]


def text(value: Interval, factor: float, digits: int) -> str:
    """Return "mean ± half"."""
    return f"{value.mean * factor:.{digits}f} ± {value.half * factor:.{digits}f}"


def tables(grid: Grid) -> Iterable[str]:
    """Yield Markdown: a table for each workload and load, then the distances to the oracle."""
    for workload in WORKLOADS:
        for load in grid.loads:
            yield f"\n### {workload}, {load:.0%} of the knee\n\n"
            shown = [*COMPARED, *SHOWN]
            rows = [
                [policy, *[text(grid.interval(n, policy, workload, load), f, d) for n, _, f, d in shown]]
                for policy in grid.policies
            ]
            yield table(["policy", *[heading for _, heading, _, _ in shown]], rows)
    yield "\n### Distance to the oracle\n\n"
    yield distances(grid)


def distances(grid: Grid) -> str:
    """Return the table of distances: how much worse than the oracle, percent of the oracle's figure."""
    head = ["workload", "load", "figure", "oracle", *[each for each in grid.policies if each not in ORACLES]]
    rows = []
    for workload in WORKLOADS:
        for load in grid.loads:
            for name, heading, factor, digits in COMPARED:
                oracle = grid.oracle(name, workload, load)
                best = grid.interval(name, oracle, workload, load)
                cells = [
                    text(grid.behind(name, policy, workload, load, oracle), 100, 0)
                    for policy in grid.policies
                    if policy not in ORACLES
                ]
                label = f"{best.mean * factor:.{digits}f} ({oracle.removeprefix('oracle-')})"
                rows.append([workload, f"{load:.0%}", heading.split(",")[0], label, *cells])
    return table(head, rows)


def judge(grid: Grid) -> bool:
    """Print the figures by which the bench is judged; return whether all meet their goals."""
    ok = True
    cells = [
        (name, workload, load) for workload in WORKLOADS for load in grid.loads for name, _, _, _ in COMPARED
    ]
    joined = [(policy, *cell) for cell in cells for policy in grid.joined(*cell)]
    for policy, name, workload, load in joined:
        print(f"beats the oracles, joins them: {policy} in {name}, {workload} at {load:.0%}", file=sys.stderr)
    beaten = sum(
        grid.behind(name, policy, workload, load, grid.oracle(name, workload, load)).high < 0
        for name, workload, load in cells
        for policy in grid.policies
    )
    for workload, knee in grid.knees.items():
        ok &= emit(f"knee_{workload}", knee, "x the workload file's rates")
    for policy in grid.policies:
        if policy in ORACLES:
            continue
        for name in ("ttft_mean_s", "e2e_mean_s", "goodput"):
            far = [
                grid.behind(name, policy, workload, load, grid.oracle(name, workload, load)).mean
                for workload in WORKLOADS
                for load in grid.loads
            ]
            ok &= emit(f"{policy}_behind_oracle_{name.removesuffix('_s')}", math.fsum(far) / len(far), "part")
    emit("policies_that_joined_the_oracles", len(joined), f"in {len(cells)} cells")
    ok &= emit("policies_that_beat_the_oracle", beaten, f"in {len(cells)} cells", 0)
    return ok


def main() -> int:
    """Run the bench; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="all policies and oracles, 6 loads, 8 seeds")
    pool_runs.add_arguments(parser, "tables.md and figures.json")
    arguments = parser.parse_args()
    begun = time.monotonic()
    policies = (*FULL_POLICIES, *ORACLES) if arguments.full else (*POLICIES, *DEFAULT_ORACLES)
    loads = FULL_LOADS if arguments.full else LOADS
    seeds = range(1, 9 if arguments.full else 6)
    knees = pool_runs.knees(list(WORKLOADS), arguments.jobs, arguments.knees)
    print(f"knees after {time.monotonic() - begun:.0f} s: {knees}", file=sys.stderr)
    runs = [
        run
        for policy in policies
        for workload in WORKLOADS
        for load in loads
        for run in runs_of(policy, workload, knees[workload] * load, seeds)
    ]
    made = pool_runs.make_all(runs, arguments.jobs)
    grid = Grid(made, knees, loads, seeds, policies)
    ok = judge(grid)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "tables.md").write_text("".join(tables(grid)))
        record = [
            {**asdict(run), "knee": knees[run.workload], **asdict(figures)} for run, figures in made.items()
        ]
        (arguments.out / "figures.json").write_text(json.dumps(record, indent=0, default=str))
    emit("routing_minutes", (time.monotonic() - begun) / 60, "min")
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in ended)
    ok &= emit("routing_minutes_of_two_idle_cores", cpu_s / 120, "min", None if arguments.full else 10)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
