"""What faults cost with the default profile, on a simulated pool of eight servers; five seeds.

One fault a run, 40 s after the begin, at 75 % of the knee of the workload "chat"; the figures are of the
requests that arrive within 30 s after it, "lost" is the number of failed requests of the whole run. Prints
JSON lines; --out DIR writes faults.md.
"""

import argparse
import sys
from typing import Final

import pool_runs
from pool_runs import VARIANTS, Run, emit, over_seeds, table, values

from pool_simulation.faults import Fault, MetricsFreeze, PickerRestarts, ServerDies, ServerSlows
from pool_simulation.figures import paired
from pool_simulation.picker_policy import PickerSettings
from pool_simulation.policies import picker

AT_S: Final = 40.0
DURATION_S: Final = AT_S + 30.0
WINDOW: Final = (AT_S, DURATION_S)
EVER: Final = (0.0, DURATION_S)
SEEDS: Final = range(1, 6)
WORKLOAD: Final = "chat"
LOAD: Final = 0.75
FAULTS: Final[dict[str, tuple[Fault, ...]]] = {
    "none": (),
    "a server dies, noticed after 1 s, back after 20 s": (
        ServerDies(at_s=AT_S, server=0, back_after_s=20.0),
    ),
    "a server dies, noticed after 10 s, back after 20 s": (
        ServerDies(at_s=AT_S, server=0, noticed_after_s=10.0, back_after_s=20.0),
    ),
    "a server slows down by half": (ServerSlows(at_s=AT_S, server=0, slowness=2.0),),
    "metrics freeze under load": (MetricsFreeze(at_s=AT_S, server=0),),
    "metrics have been frozen since the idle begin": (MetricsFreeze(at_s=0.01, server=0),),
    "no metrics of one server": (MetricsFreeze(at_s=AT_S, server=0, answers=False),),
    "the picker restarts, away for 2 s": (PickerRestarts(at_s=AT_S, down_s=2.0),),
}
VARIANTS["never expires"] = picker(PickerSettings(expires_metrics=False))
POLICIES: Final = ("default", "least-requests", "never expires")
FIGURES: Final = (
    ("ttft_mean_s", "TTFT mean, ms", 1000, 0),
    ("ttft_p99_s", "TTFT p99, ms", 1000, 0),
    ("e2e_mean_s", "E2E mean, s", 1, 2),
    ("goodput", "goodput, %", 100, 1),
    ("prefix_hit", "prefix hits, %", 100, 1),
    ("imbalance", "imbalance", 1, 2),
)
HEAD: Final = ["fault", *[heading for _, heading, _, _ in FIGURES]]


def _loses(parts: tuple[Fault, ...]) -> bool:
    return any(isinstance(each, ServerDies | PickerRestarts) for each in parts)


def main() -> int:
    """Run all faults; the figures have no goals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pool_runs.add_arguments(parser, "faults.md")
    arguments = parser.parse_args()
    scale = pool_runs.knees([WORKLOAD], arguments.jobs, arguments.knees)[WORKLOAD] * LOAD

    def runs(policy: str, fault: str, window: tuple[float, float] = WINDOW) -> list[Run]:
        return [
            Run(policy, WORKLOAD, scale, seed, FAULTS[fault], window=window, duration_s=DURATION_S)
            for seed in SEEDS
        ]

    made = pool_runs.make_all(
        [
            run
            for policy in POLICIES
            for fault, parts in FAULTS.items()
            for window in ([WINDOW, EVER] if _loses(parts) else [WINDOW])
            for run in runs(policy, fault, window)
        ],
        arguments.jobs,
        "faults",
    )
    text = ""
    for policy in POLICIES:
        rows = []
        for fault, parts in FAULTS.items():
            cells = [over_seeds(made, name, runs(policy, fault)) for name, _, _, _ in FIGURES]
            row = [
                f"{cell.mean * factor:.{digits}f} ± {cell.half * factor:.{digits}f}"
                for cell, (_, _, factor, digits) in zip(cells, FIGURES, strict=True)
            ]
            lost = over_seeds(made, "failed", runs(policy, fault, EVER)).mean if _loses(parts) else 0.0
            rows.append([fault, *row, f"{lost:.0f}"])
            if policy == "default" and fault != "none":
                missed = paired(
                    values(made, "goodput", runs(policy, "none")),
                    values(made, "goodput", runs(policy, fault)),
                )
                emit(f"{fault}: goodput lost", missed.mean * 100, "points")
        text += f"\n### {policy}\n\n" + table([*HEAD, "lost"], rows)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "faults.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
