"""What the benchmarks of simulated pools share: workloads, engines, runs in processes, knees and tables."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import paired

from endpoint_picker.config.registry import Registry
from model_server_sim.params import EngineParams
from pool_simulation.faults import Fault
from pool_simulation.figures import Figures, Interval, figures, interval
from pool_simulation.oracles import ORACLES
from pool_simulation.policies import POLICIES, Make
from pool_simulation.results import Results
from pool_simulation.simulation import Simulation
from pool_simulation.workloads.spec import WorkloadSpec, load
from pool_simulation.workloads.start import prepare

SERVERS: Final = 8
#: Llama 70B in FP8 on two H100, as model_server_sim.presets has it, with 128 sequences.
ENGINE: Final = EngineParams(
    num_gpu_blocks=26_500,
    max_num_seqs=128,
    iteration_s=18.4e-3,
    prefill_token_s=64e-6,
    attention_pair_s=2e-9,
    decode_sequence_s=36e-6,
    context_token_s=31e-9,
)
#: Share of requests within their SLOs, with the default profile, at the load that is called the knee.
KNEE_GOODPUT: Final = 0.9
#: Seconds between lines of progress that go to a file.
PROGRESS_S: Final = 10.0
#: Parts of the knee at which policies are compared.
LOADS: Final = (0.5, 0.75, 0.95)

#: Workload files by name; the rates are those of scale 1. Think times of chats and tools are shorter than the
#: presets', so that a run reaches its steady state within its warm-up.
WORKLOADS: Final[Mapping[str, str]] = {
    "chat": """\
duration_s: 50
warmup_s: 22
streams:
- name: chat
  preset: chat
  arrivals: {type: poisson, rate: 5}
  system_prompts: {count: 20, zipf: 1.0, tokens: 1000}
  turns:
    count: {type: geometric, mean: 3.7}
    think_s: {type: lognormal, median: 4, p90: 12, max: 60}
  slo: {ttft_ms: 1000, tpot_ms: 50}
""",
    "rag": """\
duration_s: 26
warmup_s: 10
streams:
- name: rag
  preset: rag
  arrivals: {type: poisson, rate: 20}
  slo: {ttft_ms: 1000, tpot_ms: 50}
""",
    "agent": """\
duration_s: 75
warmup_s: 40
streams:
- name: agent
  preset: agent
  max_prompt_tokens: 28000
  arrivals: {type: poisson, rate: 1}
  turns:
    count: {type: geometric, mean: 7.83}
    think_s: {type: lognormal, median: 1, p90: 5, max: 30}
  slo: {ttft_ms: 2000, tpot_ms: 60}
""",
    "code": """\
duration_s: 32
warmup_s: 10
streams:
- name: code
  preset: code
  arrivals: {type: gamma, rate: 20, cv: 2}
  slo: {ttft_ms: 1500, tpot_ms: 150}
""",
}


@dataclass(frozen=True)
class Run:
    """One simulated run; plain values, so that another process can make it."""

    policy: str
    """Name in POLICIES, ORACLES or VARIANTS."""
    workload: str
    scale: float
    seed: int
    faults: tuple[Fault, ...] = ()
    servers: int = SERVERS
    window: tuple[float, float] | None = None
    """Requests that arrive in it count; None: from the warm-up's end to the run's."""
    duration_s: float | None = None
    """Instead of the workload's own."""
    blocks: int = ENGINE.num_gpu_blocks
    """KV-cache blocks of a server."""


#: Further policies by name; a benchmark adds its own when it is imported, in each process.
VARIANTS: dict[str, Make] = {}


def maker(name: str) -> Make:
    """Return the maker of a policy."""
    return VARIANTS.get(name) or POLICIES.get(name) or ORACLES[name]


@cache
def registry() -> Registry:
    """Return the plugins of the measured tree."""
    return Registry(paired.plugin_loaders(paired.measured_tree()))


@cache
def spec(workload: str) -> WorkloadSpec:
    """Return a workload's model."""
    return load(WORKLOADS[workload])


def results_of(run: Run) -> Results:
    """Make the run."""
    model = spec(run.workload)
    if run.duration_s is not None:
        model = model.model_copy(update={"duration_s": run.duration_s})
    workload = prepare(model, Path()).start(run.seed, scale=run.scale)
    assert model.duration_s is not None
    return Simulation(
        [replace(ENGINE, num_gpu_blocks=run.blocks)] * run.servers,
        workload,
        maker(run.policy)(registry(), f"{run.policy}/{run.seed}"),
        duration_s=model.duration_s,
        seed=str(run.seed),
        faults=run.faults,
    ).run()


def figures_of(run: Run) -> Figures:
    """Make the run and return its figures."""
    model = spec(run.workload)
    assert model.duration_s is not None
    since, until = run.window or (model.warmup_s, model.duration_s)
    return figures(results_of(run), run.servers, since_s=since, until_s=until)


Made = Mapping[Run, Figures]


def make_all(runs: Iterable[Run], jobs: int, module: str = "") -> dict[Run, Figures]:
    """Make the runs in `jobs` processes, each of which imports `module` for its VARIANTS; slow ones first."""
    listed = sorted(set(runs), key=lambda run: (run.policy in ORACLES, run.scale), reverse=True)
    made: dict[Run, Figures] = {}
    begun = shown = time.monotonic()
    with ProcessPoolExecutor(jobs, initializer=_imported, initargs=(module,)) as pool:
        for number, (run, result) in enumerate(zip(listed, pool.map(figures_of, listed), strict=True), 1):
            made[run] = result
            at = time.monotonic()
            if sys.stderr.isatty() or at - shown >= PROGRESS_S or number in (1, len(listed)):
                end = "\r" if sys.stderr.isatty() and number < len(listed) else "\n"
                print(
                    f"{number}/{len(listed)} runs, {at - begun:.0f} s", end=end, file=sys.stderr, flush=True
                )
                shown = at
    return made


def _imported(module: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    if module:
        __import__(module)


def find_knee(workload: str) -> float:
    """Return the highest scale, within 3 %, at which the default profile has KNEE_GOODPUT."""

    def goodput(scale: float) -> float:
        runs = [Run("default", workload, scale, seed) for seed in (101, 102)]
        return sum(figures_of(run).goodput for run in runs) / len(runs)

    low, high = 0.0, 1.0
    while goodput(high) >= KNEE_GOODPUT:
        low, high = high, high * 2
    while not low:
        half = high / 2
        if goodput(half) >= KNEE_GOODPUT:
            low = half
        else:
            high = half
    while high - low > 0.03 * high:
        middle = (low + high) / 2
        if goodput(middle) >= KNEE_GOODPUT:
            low = middle
        else:
            high = middle
    return low


def add_arguments(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the flags that all benches of pools have; `out` names what they write."""
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help=f"folder for {out}")
    parser.add_argument(
        "--knees", default="", help="knees found before, e.g. chat=6.9,rag=3.1; those left out are found anew"
    )


def knees(workloads: Sequence[str], jobs: int, known: str) -> dict[str, float]:
    """Return the knee of each workload: as `known` says ("name=scale,..."), or found by bisection."""
    found = {
        name: float(scale) for name, _, scale in (each.partition("=") for each in known.split(",")) if name
    }
    missing = [workload for workload in workloads if workload not in found]
    with ProcessPoolExecutor(jobs) as pool:
        found.update(zip(missing, pool.map(find_knee, missing), strict=True))
    return {workload: found[workload] for workload in workloads}


def values(made: Made, name: str, runs: Iterable[Run]) -> list[float]:
    """Return one figure of each run."""
    return [getattr(made[run], name) for run in runs]


def over_seeds(made: Made, name: str, runs: Iterable[Run]) -> Interval:
    """Return the interval of one figure over runs that differ in the seed."""
    return interval(values(made, name, runs))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def emit(figure: str, value: float, unit: str, goal: float | None = None, *, less: bool = True) -> bool:
    """Print a figure as one JSON line; return whether it meets its goal."""
    ok = goal is None or (value <= goal if less else value >= goal)
    print(
        json.dumps({"figure": figure, "value": round(value, 4), "unit": unit, "goal": goal, "ok": ok}),
        flush=True,
    )
    return ok
