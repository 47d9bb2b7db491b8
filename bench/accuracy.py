"""Accuracy of the predictor on frozen traces: one JSON line a figure.

Each trace (`accuracy_traces`) is played to a learner that starts empty; every request is predicted before its
outcome is known (`accuracy_run`). The floor (`accuracy_floor`) is what the best answer errs by that knows the
row alone. `against` is plain XGBoost as the other project's predictor fits it: its features, squared error,
raw milliseconds, all samples of its FIFO buckets, fitted anew after every 500.

The traces are those of a seed by which nothing was chosen; `--tuned` plays those by which thresholds and
features were. 12 replays (`--replays N`), 50 with `--full`: the floor of fewer is higher. `--quick` takes 8
replays and three traces. `--ablation` also plays every trace without one group of features at a time and
prints a table.

Replays, floors, plays and the last bundle of each play are kept in `.local/accuracy`, each under a name that
has what it depends on, so that a run that was ended goes on where it was. A first run of all traces takes
about 15 minutes of an idle core, `--full` an hour.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import accuracy_traces as traces
import numpy as np
import xgboost
from accuracy_floor import Floor, floor_of
from accuracy_run import MEASURED, Played, play
from accuracy_specs import TRACES
from accuracy_traces import Rows
from numpy.typing import NDArray
from pool_runs import table

import latency_contract
import latency_predictor.learning
from latency_contract.regimes import REGIME_NAMES, regimes_of
from latency_contract.schema import COLUMN, Target
from latency_predictor.learning.learner import LearnerSettings

Mask = NDArray[np.bool_]

#: Requests from which on the predictor counts as trained.
TRAINED: Final = 2000
#: Requests after which it has to be below twice the floor, and so many of them are looked at.
EARLY: Final = 300
EARLY_ROWS: Final = 500
#: Fewest requests of a regime whose coverage says anything: two points are a standard error there.
LEAST_OF_REGIME: Final = 225
#: Replays from which the floor is estimated, and with `--full`.
REPLAYS: Final = 12
FULL: Final = 50
QUICK: Final = ("chat", "lora", "shift")

#: Groups of features that an ablation takes away.
GROUPS: Final = {
    "expected output": ("expected_output_tokens",),
    "prefix hit": ("prefix_hit",),
    "queue and batch": ("waiting_requests", "running_requests"),
    "KV cache": ("kv_usage", "kv_capacity_tokens"),
    "ledger": ("inflight_requests", "awaiting_requests", "unseen_requests"),
    "prefill in flight": ("prefill_tokens_in_flight",),
    "decode in flight": ("decode_tokens_in_flight",),
    "pace": ("recent_tpot_s",),
    "prefill rate": ("recent_prefill_rate",),
    "ages": ("metrics_age_s", "quiet_s"),
    "adapter": ("adapter_state",),
    "role": ("role",),
}


def main() -> None:
    """Print all figures; exit with status 1 when one misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--replays", type=int, default=REPLAYS)
    parser.add_argument("--full", action="store_true", help=f"{FULL} replays")
    parser.add_argument("--tuned", action="store_true", help="the seed by which features were chosen")
    parser.add_argument("--jobs", type=int, default=2, help="processes that simulate replays")
    parser.add_argument("--traces", default="", help="names, comma-separated")
    parser.add_argument("--ablation", action="store_true")
    given = parser.parse_args()
    os.nice(max(0, 15 - os.nice(0)))
    names = tuple(filter(None, given.traces.split(","))) or (QUICK if given.quick else tuple(TRACES))
    count = 8 if given.quick else FULL if given.full else given.replays
    seed = traces.TUNED if given.tuned else traces.JUDGE
    ok = True
    for name in names:
        print(f"{name}: seed {seed}, {count} replays", file=sys.stderr, flush=True)
        rows, digest = traces.rows_of(name, seed)
        frozen = traces.frozen()[name][str(seed)]
        if digest != frozen["requests"]:
            sys.exit(f"trace {name} is not the frozen one: {digest} instead of {frozen['requests']}")
        if traces.rows_digest(rows) != frozen["rows"]:
            print(f"{name}: the picker decides otherwise than when the trace was frozen", file=sys.stderr)
        traces.replays(name, count, given.jobs)
        ok &= figures(name, rows, floor_of(name, seed, count), played(name, seed, rows))
    if given.ablation:
        print(ablation(names, seed), file=sys.stderr)
    sys.exit(not ok)


def figures(name: str, rows: Rows, floor: Floor, done: Played) -> bool:
    """Print a trace's figures; return whether all meet their goals."""
    number = np.arange(len(rows.decided_s))
    regimes = regimes_of(rows.matrix)
    has_moved = TRACES[name].slowdown_at is not None
    ok = True
    for target in MEASURED:
        label = f"{name} {target.name}"
        known = np.isfinite(rows.actual[:, target]) & np.isfinite(done.predicted[:, target, 0])
        late = known & (number >= TRAINED)
        if has_moved:
            late &= ~rows.is_shifted
        base, error = floor.error(rows, target, late), error_of(rows, done, target, late)
        ok &= emit(
            f"{label} error over floor", error / base, 1.3, error=error, floor=base, replays=floor.replays
        )
        plain = upstream(rows, target)
        theirs = float(np.median(np.abs(plain[late] / rows.actual[late, target] - 1)))
        far = theirs > 1.9 * base
        ok &= emit(
            f"{label} error over plain XGBoost's",
            error / theirs,
            0.7 if far else None,
            plain=theirs,
            plain_over_floor=theirs / base,
        )
        early = known & (number >= EARLY) & (number < EARLY + EARLY_ROWS)
        if not has_moved:
            ok &= emit(
                f"{label} error over floor after {EARLY}",
                error_of(rows, done, target, early) / floor.error(rows, target, early),
                2.0,
            )
        everything = known & (number >= TRAINED)
        ok &= coverage(label, rows, done, target, everything)
        for regime, regime_name in enumerate(REGIME_NAMES):
            mine = everything & (regimes == regime)
            if mine.sum() >= LEAST_OF_REGIME:
                ok &= coverage(f"{label} {regime_name}", rows, done, target, mine)
        if has_moved:
            after = np.cumsum(rows.is_shifted)
            settled = known & (after > TRAINED)
            ratio = error_of(rows, done, target, settled) / floor.error(rows, target, settled)
            ok &= emit(f"{label} error over floor from {TRAINED} after the shift", ratio, 1.5)
    if has_moved:
        shifted = np.flatnonzero(rows.is_shifted)
        out = np.flatnonzero(~done.routes[shifted])
        ok &= emit(
            f"{name} requests after the shift until out of routing", float(out[0]) if len(out) else 1e9, 200
        )
        back = np.flatnonzero(done.routes[shifted[TRAINED:]])
        emit(
            f"{name} routed share from {TRAINED} after the shift", len(back) / max(1, len(shifted) - TRAINED)
        )
    emit(f"{name} routed share from {TRAINED}", float(done.routes[number >= TRAINED].mean()), None)
    return ok


def error_of(rows: Rows, done: Played, target: Target, chosen: Mask) -> float:
    """Return the median absolute relative error of the predicted medians."""
    return float(np.median(np.abs(done.predicted[chosen, target, 0] / rows.actual[chosen, target] - 1)))


def coverage(label: str, rows: Rows, done: Played, target: Target, chosen: Mask) -> bool:
    """Print the share of outcomes within the 90 % bound, as points off."""
    share = float((rows.actual[chosen, target] <= done.predicted[chosen, target, 1]).mean())
    return emit(f"{label} coverage off 90 %", abs(share - 0.9) * 100, 2.0, unit="points", n=int(chosen.sum()))


def emit(figure: str, value: float, goal: float | None = None, *, unit: str = "ratio", **more: float) -> bool:
    """Print one line; the value may be at most the goal."""
    ok = goal is None or value <= goal
    line = {"figure": figure, "value": round(value, 3), "unit": unit, "goal": goal, "ok": ok}
    print(json.dumps(line | {name: round(each, 4) for name, each in more.items()}), flush=True)
    return ok


def played(name: str, seed: int, rows: Rows, without: Sequence[str] = ()) -> Played:
    """Return the play of a trace, kept on disk until the learner's code changes."""
    digest = hashlib.sha256(
        f"{traces._key(name)} {traces.rows_digest(rows)} {without} {LearnerSettings()}".encode()
    )
    for package in (latency_predictor.learning, latency_contract):
        for path in sorted(Path(package.__path__[0]).glob("*.py")):
            digest.update(path.read_bytes())
    digest.update((traces.HERE / "accuracy_run.py").read_bytes())
    label = f"{name}-{seed}-{digest.hexdigest()[:12]}"
    path = traces.CACHE / f"play-{label}.npz"
    if path.exists():
        with np.load(path) as kept:
            return Played(kept["predicted"], kept["routes"], int(kept["trainings"]), int(kept["promotions"]))
    columns = [COLUMN[each] for each in without]

    def blank(matrix: NDArray[np.float32]) -> None:
        from latency_contract.matrix import derive

        matrix[:, columns] = np.nan
        derive(matrix)

    models = None if columns else traces.CACHE / f"models-{label}"
    done = play(rows, LearnerSettings(), blank if columns else None, models)
    np.savez_compressed(path, **dataclasses.asdict(done))
    return done


#: Features that the other project's predictor has of a row, beside whether anything waits, a bucket of the
#: prefix hit, and the role.
_UPSTREAM: Final = (
    "kv_usage",
    "input_tokens",
    "waiting_requests",
    "inflight_requests",
    "prefill_tokens_in_flight",
    "prefix_hit",
    "uncached_tokens",
)
#: Samples of a FIFO bucket: 5 classes of queue x 20 of KV usage x 4 of prefix hit.
_BUCKET: Final = 500


def upstream(rows: Rows, target: Target) -> NDArray[np.float64]:
    """Return what plain XGBoost predicts for each row, in seconds, fitted anew after every 500 samples.

    It is given each sample as soon as its request was picked, which favours it.
    """
    path = traces.CACHE / f"upstream-{target.name}-{traces.rows_digest(rows)}.npy"
    if path.exists():
        kept: NDArray[np.float64] = np.load(path)
        return kept
    matrix = rows.matrix
    hit, waiting = matrix[:, COLUMN["prefix_hit"]], matrix[:, COLUMN["waiting_requests"]]
    features = np.column_stack(
        [
            waiting > 0,
            *(matrix[:, COLUMN[name]] for name in _UPSTREAM),
            np.minimum(hit * 4 // 1, 3),
            matrix[:, COLUMN["role"]],
        ]
    )
    queue = np.digitize(np.nan_to_num(waiting), (1, 3, 6, 11))
    usage = np.minimum(np.nan_to_num(matrix[:, COLUMN["kv_usage"]]) * 20 // 1, 19)
    bucket = (queue * 20 + usage) * 4 + np.minimum(np.nan_to_num(hit) * 4 // 1, 3)
    has = np.flatnonzero(np.isfinite(rows.actual[:, target]))
    found = np.full(len(matrix), np.nan)
    for begin in range(500, len(matrix), 500):
        known = has[has < begin]
        newest: list[int] = []
        for each in np.unique(bucket[known]):
            newest += known[bucket[known] == each][-_BUCKET:].tolist()
        if len(newest) < 10:
            continue
        data = xgboost.DMatrix(features[newest], rows.actual[newest, target] * 1000)
        booster = xgboost.train(_UPSTREAM_PARAMETERS, data, 200)
        part = slice(begin, begin + 500)
        found[part] = np.maximum(booster.predict(xgboost.DMatrix(features[part])), 0) / 1000
    np.save(path, found)
    return found


_UPSTREAM_PARAMETERS: Final = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.05,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 5,
    "gamma": 0.2,
    "alpha": 0.01,
    "lambda": 0.1,
    "tree_method": "hist",
    "nthread": 1,
    "seed": 42,
}


def ablation(names: Sequence[str], seed: int) -> str:
    """Return a table: the error without each group of features over that with all, per trace and target."""
    heads = [f"{name} {target.name}" for name in names for target in MEASURED]
    found = []
    for group, without in GROUPS.items():
        cells = [group]
        for name in names:
            rows, _ = traces.rows_of(name, seed)
            late = np.arange(len(rows.decided_s)) >= TRAINED
            whole, less = played(name, seed, rows), played(name, seed, rows, without)
            for target in MEASURED:
                chosen = late & np.isfinite(rows.actual[:, target])
                chosen &= np.isfinite(whole.predicted[:, target, 0]) & np.isfinite(
                    less.predicted[:, target, 0]
                )
                ratio = error_of(rows, less, target, chosen) / error_of(rows, whole, target, chosen)
                cells.append(f"{ratio:.2f}")
        found.append(cells)
    return table(["without", *heads], found)


if __name__ == "__main__":
    main()
