"""What known failures of routing cost: the default profile on simulated pools with one remedy switched off.

Herding (requests since the last scrape are not counted), stale metrics (longer scrape intervals, values that
never expire) and cold prefixes (no prefix scorer; scorers that spread prompts which no server holds). Prints
JSON lines; --out DIR writes remedies.md.
"""

import argparse
import sys
from typing import Final

import pool_runs
from pool_runs import VARIANTS, WORKLOADS, Run, emit, over_seeds, table, values

from pool_simulation.figures import paired
from pool_simulation.picker_policy import PickerSettings
from pool_simulation.policies import DEFAULT_WEIGHTS, picker, picker_config
from pool_simulation.scrapes import ScrapeTiming

LOADS: Final = (0.9,)
SEEDS: Final = range(1, 6)


def _scraped(interval_s: float, *, counts: bool = True, expires: bool = True) -> PickerSettings:
    timing = ScrapeTiming(interval_s=interval_s)
    return PickerSettings(scrape=timing, counts_own_requests=counts, expires_metrics=expires)


def _without(scorer: str) -> dict[str, float]:
    return {name: weight for name, weight in DEFAULT_WEIGHTS.items() if name != scorer}


_BY_ACTIVE = {"active-request-scorer": 2.0, **_without("queue-scorer")}
SETTINGS: Final = {
    "default": PickerSettings(),
    "no ledger, 50 ms": _scraped(0.05, counts=False),
    "no ledger, 200 ms": _scraped(0.2, counts=False),
    "no ledger, 1 s": _scraped(1.0, counts=False),
    "scrape 200 ms": _scraped(0.2),
    "scrape 1 s": _scraped(1.0),
    "scrape 5 s, expires at 2 s": _scraped(5.0),
    "scrape 5 s, never expires": _scraped(5.0, expires=False),
    "no prefix scorer": PickerSettings(config=picker_config(_without("prefix-cache-scorer"))),
    "with no-hit-lru": PickerSettings(config=picker_config({**DEFAULT_WEIGHTS, "no-hit-lru-scorer": 1})),
    "prefix weight 1": PickerSettings(config=picker_config({**DEFAULT_WEIGHTS, "prefix-cache-scorer": 1})),
    "prefix weight 10": PickerSettings(config=picker_config({**DEFAULT_WEIGHTS, "prefix-cache-scorer": 10})),
    "active-request for queue": PickerSettings(config=picker_config(_BY_ACTIVE)),
}
VARIANTS.update({name: picker(settings) for name, settings in SETTINGS.items()})
FIGURES: Final = (
    ("ttft_mean_s", "TTFT mean", 1),
    ("ttft_p99_s", "TTFT p99", 1),
    ("e2e_mean_s", "E2E mean", 1),
    ("goodput", "goodput, points", 0),
    ("prefix_hit", "prefix hits, points", 0),
    ("imbalance", "imbalance", 1),
)


def main() -> int:
    """Run all variants; the figures have no goals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pool_runs.add_arguments(parser, "remedies.md")
    arguments = parser.parse_args()
    knees = pool_runs.knees(list(WORKLOADS), arguments.jobs, arguments.knees)
    cells = [(workload, load) for workload in WORKLOADS for load in LOADS]

    def runs(name: str, workload: str, load: float) -> list[Run]:
        return [Run(name, workload, knees[workload] * load, seed) for seed in SEEDS]

    every = [run for name in SETTINGS for workload, load in cells for run in runs(name, workload, load)]
    made = pool_runs.make_all(every, arguments.jobs, "remedies")
    text = ""
    for workload, load in cells:
        rows = []
        for name in SETTINGS:
            row = [name]
            for figure, _, relative in FIGURES:
                mine = values(made, figure, runs(name, workload, load))
                base = values(made, figure, runs("default", workload, load))
                change, mean = paired(mine, base), sum(base) / len(base)
                scale = 100 / mean if relative and mean else 100
                if name == "default":
                    own = over_seeds(made, figure, runs(name, workload, load))
                    row.append(f"{own.mean:.3f}")
                    continue
                row.append(f"{change.mean * scale:+.1f} ± {change.half * scale:.1f}")
                if figure in {"ttft_mean_s", "goodput"}:
                    label = f"{name}, {workload}, {load:.0%}: {figure}"
                    emit(label, change.mean * scale, "%" if relative else "points")
            rows.append(row)
        head = ["variant", *[f"{heading}, %" if relative else heading for _, heading, relative in FIGURES]]
        text += f"\n### {workload}, {load:.0%} of the knee\n\n" + table(head, rows)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "remedies.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
