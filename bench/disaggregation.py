"""Prefill and decode apart, against servers that do both: 8 simulated servers under two workloads.

For each workload and each split of the servers: the highest rate at which 90 % of the requests meet their
SLOs, over two seeds; then the times at the rate that the undivided pool bears. Prints JSON lines; --out DIR
writes disaggregation.md.
"""

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from pool_runs import ENGINE, KNEE_GOODPUT, SERVERS, emit, table

from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG
from inference_api.names import ROLE_LABEL
from pool_simulation.figures import Figures
from pool_simulation.study.groups import Group
from pool_simulation.study.runs import Point, Setup, run
from pool_simulation.study.search import highest_load
from pool_simulation.workloads.spec import load
from pool_simulation.workloads.start import prepare

#: The default scorers in both stages; prompts of which the decode server lacks 512 tokens go to prefill.
CONFIG: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: prefill-filter}
- {type: decode-filter}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""

#: Workloads by name. Long prompts with a tight time per token gain from
#: apart; short prompts with long answers leave the prefill servers idle.
WORKLOADS: Final[Mapping[str, str]] = {
    "documents": """\
duration_s: 45
warmup_s: 15
streams:
- name: documents
  arrivals: {type: poisson, rate: 6}
  prompt_tokens: {type: lognormal, median: 4000, p90: 9000, min: 500, max: 16000}
  output_tokens: {type: lognormal, median: 150, p90: 300, max: 1000}
  slo: {ttft_ms: 3000, tpot_ms: 40}
""",
    "writing": """\
duration_s: 45
warmup_s: 20
streams:
- name: writing
  arrivals: {type: poisson, rate: 30}
  prompt_tokens: {type: lognormal, median: 105, p90: 345, min: 4, max: 4096}
  output_tokens: {type: lognormal, median: 291, p90: 586, max: 2048}
  slo: {ttft_ms: 3000, tpot_ms: 40}
""",
}
#: Prefill servers of each pool; 0 is the undivided one with the default configuration.
SPLITS: Final = (0, 2, 4, 6)
SEEDS: Final = (1, 2)
#: The highest scale tried.
MOST: Final = 8.0


def name_of(split: int) -> str:
    """Return what a pool is called."""
    return f"{split} prefill + {SERVERS - split} decode" if split else f"{SERVERS} undivided"


def made(workload: str, split: int, scale: float) -> list[Figures]:
    """Return the figures of a pool, one for each seed."""
    groups = tuple(
        Group(((ROLE_LABEL, role),), count)
        for role, count in (("prefill", split), ("decode", SERVERS - split))
        if split
    )
    setup = Setup(prepare(load(WORKLOADS[workload]), Path()), ENGINE, groups=groups)
    point = Point(CONFIG if split else DEFAULT_PICKER_CONFIG, SERVERS, scale)
    return [run(setup, point, seed).figures for seed in SEEDS]


def mean(found: list[Figures], name: str) -> float:
    """Return a figure's mean over the seeds."""
    return float(sum(getattr(each, name) for each in found) / len(found))


def knee(workload: str, split: int) -> float:
    """Return the highest scale at which the pool has KNEE_GOODPUT, to 4 %; 0.0 when scale 1 is too much."""

    def bears(scale: float) -> bool:
        return mean(made(workload, split, scale), "goodput") >= KNEE_GOODPUT

    return highest_load(bears, most=MOST) if bears(1.0) else 0.0


def main() -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="folder for disaggregation.md")
    given = parser.parse_args()
    text, ok = "", True
    with ProcessPoolExecutor(given.jobs) as pool:
        for workload in WORKLOADS:
            rate = load(WORKLOADS[workload]).streams[0].arrivals
            per_scale = float(rate.model_dump()["rate"])
            knees = dict(zip(SPLITS, pool.map(partial(knee, workload), SPLITS), strict=True))
            at = knees[0]
            found = dict(zip(SPLITS, pool.map(partial(made, workload, scale=at), SPLITS), strict=True))
            rows = []
            for split in SPLITS:
                times = [
                    f"{1000 * mean(found[split], f'{figure}_{part}_s'):,.0f}"
                    for figure in ("ttft", "tpot")
                    for part in ("p50", "p99")
                ]
                bears = f"{knees[split] * per_scale:.1f}" if knees[split] else f"below {per_scale:g}"
                rows.append([name_of(split), bears, f"{100 * mean(found[split], 'goodput'):.0f} %", *times])
            best = max(knees[split] for split in SPLITS if split)
            wanted, less = (1.2, False) if workload == "documents" else (1.0, True)
            figure = f"{workload}: rate within SLOs, best split over undivided"
            ok &= emit(figure, best / at, "ratio", wanted, less=less)
            head = ["pool", "requests/s within SLOs", f"goodput at {at * per_scale:.1f}/s"]
            head += ["TTFT p50, ms", "TTFT p99", "TPOT p50", "TPOT p99"]
            text += f"**{workload}**\n\n{table(head, rows)}\n"
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "disaggregation.md").write_text(text)
    return not ok


if __name__ == "__main__":
    sys.exit(main())
