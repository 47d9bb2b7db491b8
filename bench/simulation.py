"""Speed of the pool simulation: virtual seconds a CPU second, with the default profile, in one process.

100 endpoints at 1,000 requests a second: prompts of some 600 tokens behind 50 system prompts, answers of 150,
scraped every 50 ms. Prints one JSON line a figure: the median of the rounds.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from pool_runs import emit, registry

from model_server_sim.params import EngineParams
from pool_simulation.policies import POLICIES
from pool_simulation.simulation import Simulation
from pool_simulation.workloads.spec import load
from pool_simulation.workloads.start import prepare

ENDPOINTS: Final = 100
DURATION_S: Final = 10
WORKLOAD: Final = f"""\
duration_s: {DURATION_S}
streams:
- name: s
  arrivals: {{type: poisson, rate: 1000}}
  system_prompts: {{count: 50, zipf: 0, tokens: 512}}
  prompt_tokens: {{type: uniform, low: 16, high: 240}}
  output_tokens: {{type: uniform, low: 75, high: 225}}
"""


def measured(seed: int) -> tuple[float, float]:
    """Return virtual seconds a CPU second and CPU microseconds a request of one run, set-up included."""
    workload = prepare(load(WORKLOAD), Path()).start(seed)
    begun = time.process_time()
    run = Simulation(
        [EngineParams()] * ENDPOINTS,
        workload,
        POLICIES["default"](registry(), str(seed)),
        duration_s=DURATION_S,
    )
    results = run.run()
    cpu_s = time.process_time() - begun
    return DURATION_S / cpu_s, cpu_s / len(results) * 1e6


def main() -> int:
    """Run the bench; exit 1 when the goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = [measured(seed) for seed in range(1, parser.parse_args().rounds + 1)]
    ok = emit(
        "simulated_over_real_time", statistics.median([speed for speed, _ in rounds]), "x", 5.0, less=False
    )
    emit("simulated_request_cpu", statistics.median([cost for _, cost in rounds]), "us")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
