"""Plots of a routing bench: one PNG a figure, a panel a workload, a line a policy, over the load.

python bench/routing_plots.py DIR [--to docs/plots]       DIR has figures.json of bench/routing.py
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from pool_runs import Run
from routing import Grid

from pool_simulation.figures import NAMES, Figures
from pool_simulation.oracles import ORACLES

#: Figure, axis label, factor, logarithmic axis.
PLOTS: Final = (
    ("ttft_p99_s", "TTFT p99, ms", 1000, True),
    ("e2e_mean_s", "E2E mean, s", 1, False),
    ("goodput", "goodput, %", 100, False),
    ("prefix_hit", "prefix hits, %", 100, False),
)
_COLOURS: Final = ("tab:gray", "tab:olive", "tab:blue", "tab:red", "tab:green", "tab:purple")


def read(path: Path) -> Grid:
    """Return the grid that bench/routing.py wrote."""
    made: dict[Run, Figures] = {}
    knees: dict[str, float] = {}
    for each in json.loads(path.read_text()):
        run = Run(each["policy"], each["workload"], each["scale"], each["seed"])
        made[run] = Figures(**{name: each[name] for name in NAMES})
        knees[run.workload] = each["knee"]
    loads = sorted({round(run.scale / knees[run.workload], 6) for run in made})
    seeds = range(min(run.seed for run in made), max(run.seed for run in made) + 1)
    policies = list(dict.fromkeys(run.policy for run in made))
    return Grid(made, knees, loads, seeds, policies)


def draw(grid: Grid, name: str, label: str, factor: float, *, logarithmic: bool) -> Any:
    """Return the drawing of one figure."""
    workloads = list(grid.knees)
    drawing, axes = plt.subplots(1, len(workloads), figsize=(3.4 * len(workloads), 3.2), squeeze=False)
    order = [
        policy
        for policy in ("random", "round-robin", "least-requests", "default", "precise")
        if policy in grid.policies
    ]
    for axis, workload in zip(axes[0], workloads, strict=True):
        percent = [100 * load for load in grid.loads]
        for policy, colour in zip(order, _COLOURS, strict=False):
            cells = [grid.interval(name, policy, workload, load) for load in grid.loads]
            means = [cell.mean * factor for cell in cells]
            halves = [cell.half * factor for cell in cells]
            axis.errorbar(percent, means, halves, label=policy, color=colour, capsize=2, linewidth=1)
        best = [
            grid.interval(name, grid.oracle(name, workload, load), workload, load).mean for load in grid.loads
        ]
        axis.plot(percent, [value * factor for value in best], "k--", label="oracle", linewidth=1)
        axis.set_title(workload)
        axis.set_xlabel("load, % of the knee")
        if logarithmic:
            axis.set_yscale("log")
    axes[0][0].set_ylabel(label)
    axes[0][0].legend(fontsize=7)
    drawing.tight_layout()
    return drawing


def main() -> int:
    """Write the plots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, default=Path("docs/plots"))
    arguments = parser.parse_args()
    grid = read(arguments.folder / "figures.json")
    assert any(policy in ORACLES for policy in grid.policies)
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name, label, factor, logarithmic in PLOTS:
        path = arguments.to / f"routing-{name.removesuffix('_s').replace('_', '-')}.png"
        draw(grid, name, label, factor, logarithmic=logarithmic).savefig(
            path, dpi=110, metadata={"Software": None}
        )
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
