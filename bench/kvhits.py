"""Prefix hits of the precise index against the approximate one, by how much the servers' caches can hold.

Pools of eight simulated servers under one load, with whole, half and quarter caches: the picker's default
profile, the same with KV events (50 ms late, in vLLM's format, through the picker's own decoder and index),
the same with speculative indexing, and one that reads the engines' caches without delay. Prints JSON lines
and a table.

    python bench/kvhits.py [--jobs 1] [--seeds 2]     60 runs, some 3 CPU minutes
    python bench/kvhits.py --quick                    12 runs, half a CPU minute

On standard error it says how far it is, at the first run and then every 10 seconds.
"""

import argparse
import sys
from typing import Final

import pool_runs
from pool_runs import ENGINE, Run

POLICIES: Final = ("random", "default", "kv-events", "kv-events-routed", "precise-routed")
#: Workload to the scale of its load: about three quarters of its knee with whole caches.
LOADS: Final = {"chat": 6.4, "agent": 5.25}
PARTS: Final = (1, 2, 4)
#: What `--quick` leaves of both, with one seed.
QUICK_POLICIES: Final = ("default", "kv-events", "kv-events-routed")
QUICK_PARTS: Final = (1, 4)


def main() -> None:
    """Make all runs, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workloads", default="chat,agent")
    parser.add_argument("--quick", action="store_true", help="one seed, fewer policies and caches")
    chosen = parser.parse_args()
    policies, parts = (QUICK_POLICIES, QUICK_PARTS) if chosen.quick else (POLICIES, PARTS)
    seeds = 1 if chosen.quick else chosen.seeds
    workloads = chosen.workloads.split(",")
    cells = [(workload, part, policy) for workload in workloads for part in parts for policy in policies]
    runs = {
        cell: [
            Run(cell[2], cell[0], LOADS[cell[0]], seed, blocks=ENGINE.num_gpu_blocks // cell[1])
            for seed in range(1, seeds + 1)
        ]
        for cell in cells
    }
    made = pool_runs.make_all([run for each in runs.values() for run in each], chosen.jobs)
    lines = ["| workload | cache | " + " | ".join(policies) + " |", "|---" * (2 + len(policies)) + "|"]
    for workload in workloads:
        for part in parts:
            shown = []
            for policy in policies:
                found = [made[run] for run in runs[workload, part, policy]]
                hits = 100 * sum(each.prefix_hit for each in found) / len(found)
                ttft = 1000 * sum(each.ttft_mean_s for each in found) / len(found)
                shown.append(f"{hits:.1f} %, {ttft:.0f} ms")
                pool_runs.emit(f"prefix_hit/{workload}/1:{part}/{policy}", hits, "%")
            lines.append(f"| {workload} | 1/{part} | " + " | ".join(shown) + " |")
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
