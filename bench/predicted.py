"""Routing by predicted latency on simulated pools, beside the default profile, other formulas and oracles.

    python bench/predicted.py                      workloads of varied prompt lengths, 4 loads, 5 seeds
    python bench/predicted.py --seeds 2 --workloads mixed

A trainer's own code learns from requests that the default profile picked (other seeds, three loads of each
workload); its bundle then serves all runs. `predicted` and `upstream` read the same predictions: the first
takes the best score of `latency-scorer`, the second has the llm-d router's filters, and its random picker.
Neither knows the SLOs; with `--objectives` three more policies are, one for each strategy of the scorer.
The knee is the load at which the default profile serves 90 % of the requests within their SLOs. Prints JSON
lines: a part is a difference over the default profile's figure, paired by seed, with its 95 % interval.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pool_runs
from pool_runs import VARIANTS, Made, Run, emit, figures_of, values
from typing_extensions import override

from endpoint_picker.latency.link import Answered
from latency_contract import bundles
from latency_contract.bundles import Bundle
from latency_contract.sample_wire import SampleBatch
from latency_contract.states import State
from latency_predictor.learning.learner import Learner, LearnerSettings
from latency_predictor.serving.model import ServingModel, serving_model
from pool_simulation.figures import Interval, paired
from pool_simulation.picker_policy import PickerSettings
from pool_simulation.policies import DEFAULT_WEIGHTS, picker, picker_config
from pool_simulation.policy import Surroundings
from pool_simulation.prediction import BundlePredictor, OraclePredictor

#: Prompts of very different lengths: conversations, and papers to sum up.
MIXED: Final = """\
duration_s: 40
warmup_s: 12
streams:
- name: conversation
  preset: conversation
  arrivals: {type: poisson, rate: 20}
  slo: {ttft_ms: 1000, tpot_ms: 80}
- name: papers
  preset: long-context
  arrivals: {type: poisson, rate: 1.5}
  slo: {ttft_ms: 3000, tpot_ms: 80}
"""
WORKLOADS: Final = {**pool_runs.WORKLOADS, "mixed": MIXED}
# In each process, so that runs find them.
setattr(pool_runs, "WORKLOADS", WORKLOADS)  # noqa: B010 - it is Final for all other benches
LOADS: Final = (0.7, 0.8, 0.9, 0.95)
#: Seeds and loads that the trainer learns from.
LEARNED_SEEDS: Final = (201, 202, 203)
LEARNED_LOADS: Final = (0.7, 0.85, 1.0)
ORACLES: Final = ("oracle-ttft", "oracle-first")
#: Policies that get the SLOs in headers, with the scorer's strategy.
TOLD: Final = ("objectives", "objectives-least", "objectives-most")
#: Where the processes find the bundle.
FOLDER: Final = "HEADROOM_BENCH_BUNDLES"

_PRODUCER: Final = """\
- type: predicted-latency-producer
  parameters: {mode: All, streamingMode: true, holdoutPercent: 0%s}
"""
_PREDICTED: Final = (
    "plugins:\n"
    + _PRODUCER % ""
    + """\
- {type: latency-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: predicted
  plugins: [{pluginRef: latency-scorer}, {pluginRef: max-score-picker}]
"""
)
_UPSTREAM: Final = (
    "plugins:\n"
    + _PRODUCER % ""
    + """\
- type: prefix-cache-affinity-filter
  name: strict
  parameters: {affinityThreshold: 0.99, maxTTFTPenaltyMs: 5000, ttftSource: latencyPredictor}
- type: slo-headroom-tier-filter
- type: prefix-cache-affinity-filter
  name: loose
  parameters: {affinityThreshold: 0.8, maxTTFTPenaltyMs: 5000, ttftSource: latencyPredictor}
- type: latency-scorer
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: strict
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
"""
)


@cache
def model() -> ServingModel:
    """Return the model of the bundle that was trained for this bench."""
    found, errors = bundles.load_newest(Path(os.environ[FOLDER]))
    if found is None:
        raise RuntimeError("; ".join(errors) or "there is no bundle")
    return serving_model(found, None)


def bundle_predictor(_pool: Surroundings) -> BundlePredictor:
    """Return the prediction server of a run."""
    return BundlePredictor(model())


VARIANTS["predicted"] = picker(PickerSettings(config=_PREDICTED, predictor=bundle_predictor))
for name, strategy in zip(TOLD, ("fastest", "least", "most"), strict=True):
    scorer = f"{{type: latency-scorer, parameters: {{headroomSelectionStrategy: {strategy}}}}}"
    VARIANTS[name] = picker(
        PickerSettings(
            config=_PREDICTED.replace("{type: latency-scorer}", scorer),
            predictor=bundle_predictor,
            sends_objectives=True,
        )
    )
VARIANTS["upstream"] = picker(PickerSettings(config=_UPSTREAM, predictor=bundle_predictor))
VARIANTS["predicted-by-oracle"] = picker(PickerSettings(config=_PREDICTED, predictor=OraclePredictor))


class _Collector(BundlePredictor):
    """Keeps the samples of a run; the configuration asks nothing of it."""

    def __init__(self, kept: list[SampleBatch]) -> None:
        self._kept = kept

    @override
    def learn(self, batch: SampleBatch) -> None:
        self._kept.append(batch)

    @override
    def send(self, server: int, message: bytes, timeout_s: float, answered: Answered) -> None:
        answered(None)


def samples_of(workload: str, scale: float, seed: int) -> list[SampleBatch]:
    """Return the samples of a run that the default profile picked for."""
    kept: list[SampleBatch] = []
    config = picker_config(DEFAULT_WEIGHTS).replace(
        "plugins:\n", "plugins:\n" + _PRODUCER % ", predictInProduce: false", 1
    )
    VARIANTS["collecting"] = picker(PickerSettings(config=config, predictor=lambda _pool: _Collector(kept)))
    figures_of(Run("collecting", workload, scale, seed))
    return kept


def trained(knees: dict[str, float]) -> Bundle:
    """Return a bundle that a trainer made of the samples of all workloads."""
    learner, now = Learner(LearnerSettings()), 0.0
    for workload, knee in knees.items():
        for load in LEARNED_LOADS:
            for seed in LEARNED_SEEDS:
                for batch in samples_of(workload, knee * load, seed):
                    moved = dataclasses.replace(batch, time_s=batch.time_s + now)
                    learner.take(moved, float(moved.time_s.max()))
                now += 100.0
    learner.train(now)
    made = learner.bundle(1)
    # The samples come from several pools in turn, which the watch takes for a shift.
    models = {
        target: dataclasses.replace(each, degraded=(False,) * len(each.degraded))
        for target, each in made.manifest.models.items()
    }
    manifest = dataclasses.replace(made.manifest, state=State.TRAINED, models=models)
    return Bundle(manifest, made.trees)


def part(made: Made, name: str, policy: str, base: str, cell: tuple[str, float], seeds: range) -> Interval:
    """Return (policy - base) / base in one figure, paired by seed."""
    mine, other = (values(made, name, [Run(each, *cell, seed) for seed in seeds]) for each in (policy, base))
    scale = sum(other) / len(other)
    difference = paired(mine, other)
    return Interval(difference.mean / scale, difference.half / scale) if scale else difference


def over(made: Made, name: str, policy: str, cell: tuple[str, float], seeds: range) -> float:
    """Return the mean of a figure over the seeds."""
    return sum(values(made, name, [Run(policy, *cell, seed) for seed in seeds])) / len(seeds)


def judge(made: Made, knees: dict[str, float], seeds: range, told: tuple[str, ...]) -> bool:
    """Print the figures of each cell; return whether all goals are met.

    `told` are the policies that get the SLOs; they have no goal.
    """
    ok = True
    for workload, knee in knees.items():
        for load in LOADS:
            cell = (workload, knee * load)
            mean = {
                policy: over(made, "ttft_p90_s", policy, cell, seeds)
                for policy in ("default", "predicted", "upstream", "predicted-by-oracle", *ORACLES, *told)
            }
            best = min(mean[each] for each in ORACLES)
            change = part(made, "ttft_p90_s", "predicted", "default", cell, seeds)
            gap = mean["default"] - best
            closed = (mean["default"] - mean["predicted"]) / gap if gap > 0 else 1.0
            where = f"{workload}_{load:.0%}"
            for policy, value in mean.items():
                emit(f"{where}_ttft_p90_{policy}", value * 1000, "ms")
            reached = change.mean <= -0.3 or closed >= 2 / 3
            ok &= emit(f"{where}_ttft_p90_change", change.mean, f"part, ± {change.half:.3f}", -0.3) or reached
            emit(
                f"{where}_ttft_p90_distance_closed",
                closed,
                "part of the distance to the oracle",
                2 / 3,
                less=False,
            )
            for name in ("ttft_mean_s", "ttft_p90_s", "e2e_mean_s", "tpot_mean_s"):
                worse = part(made, name, "predicted", "default", cell, seeds)
                ok &= emit(f"{where}_{name.removesuffix('_s')}_worse_at_least", worse.low, "part", 0.03)
            missed = {
                policy: 1 - over(made, "goodput", policy, cell, seeds)
                for policy in ("default", "predicted", "upstream", *told)
            }
            for policy, value in missed.items():
                emit(f"{where}_slo_missed_{policy}", value, "part")
            if missed["default"] > 0.05:
                ok &= emit(f"{where}_slo_missed_ratio", missed["predicted"] / missed["default"], "ratio", 0.5)
    return ok


def main() -> int:
    """Run the bench; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="mixed,code,agent", help="names, comma-separated")
    parser.add_argument("--seeds", type=int, default=5, help="runs of a cell (default 5)")
    parser.add_argument("--objectives", action="store_true", help="run the policies that get the SLOs, too")
    pool_runs.add_arguments(parser, "nothing")
    given = parser.parse_args()
    workloads = given.workloads.split(",")
    knees = pool_runs.knees(workloads, given.jobs, given.knees)
    for workload, knee in knees.items():
        emit(f"knee_{workload}", knee, "x the workload file's rates")
    with tempfile.TemporaryDirectory() as folder:
        bundle = trained(knees)
        for target, each in bundle.manifest.models.items():
            emit(f"stratified_error_{target.name.lower()}", each.stratified_error or 0.0, "part", None)
        bundles.publish(Path(folder), bundle)
        os.environ[FOLDER] = folder
        seeds = range(1, given.seeds + 1)
        told = TOLD if given.objectives else ()
        policies = ("default", "predicted", "upstream", "predicted-by-oracle", *ORACLES, *told)
        runs = [
            Run(policy, workload, knees[workload] * load, seed)
            for policy in policies
            for workload in workloads
            for load in LOADS
            for seed in seeds
        ]
        made = pool_runs.make_all(runs, given.jobs, "predicted")
        return 0 if judge(made, knees, seeds, told) else 1


if __name__ == "__main__":
    sys.exit(main())
