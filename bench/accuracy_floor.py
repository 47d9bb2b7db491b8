"""The error floor of a trace: what the best answer errs by that knows the feature row alone.

The same row is followed by different outcomes: other arrivals come later, stalls fall elsewhere, foreign
requests are not seen. The best answer to a row is the median of its outcomes, which estimators learn from
replays of the trace with other seeds: many times the samples that the predictor has, all at once, none of
them the trace's own. The floor is the lowest median error of the estimators. Estimators are not perfect, so
the true floor is lower; more replays bring the two together.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

import accuracy_traces as traces
import numpy as np
import xgboost
from accuracy_traces import Rows
from numpy.typing import NDArray

from latency_contract.base_model import margins, terms
from latency_contract.schema import Target
from latency_predictor.learning.base_fit import fit_base

#: Rounds and depth of the estimators' trees.
ROUNDS: Final = 150
DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class Floor:
    """Answers of the estimators for every row of a trace."""

    answers: dict[Target, NDArray[np.float32]]
    """float32[estimators, rows] seconds."""
    replays: int

    def error(self, rows: Rows, target: Target, chosen: NDArray[np.bool_]) -> float:
        """Return the lowest median absolute relative error of the estimators over the chosen rows."""
        actual = rows.actual[chosen, target]
        found = np.abs(self.answers[target][:, chosen] / actual - 1)
        return float(np.median(found, axis=1).min())


def floor_of(name: str, seed: int, replays: int, threads: int = 1) -> Floor:
    """Return the floor of a trace from the first `replays` replays; computed once, kept on disk."""
    key = hashlib.sha256(f"{traces._key(name)} {replays} {ROUNDS} {DEPTH} 2".encode()).hexdigest()[:12]
    path = traces.CACHE / f"floor-{name}-{seed}-{replays}-{key}.npz"
    if path.exists():
        with np.load(path) as kept:
            return Floor({Target.TTFT: kept["ttft"], Target.TPOT: kept["tpot"]}, replays)
    others = [traces.rows_of(name, each)[0] for each in traces.replay_seeds(replays)]
    rows, _ = traces.rows_of(name, seed)
    answers = {target: _answers(rows, others, target, threads) for target in (Target.TTFT, Target.TPOT)}
    np.savez_compressed(path, ttft=answers[Target.TTFT], tpot=answers[Target.TPOT])
    return Floor(answers, replays)


def _answers(rows: Rows, others: list[Rows], target: Target, threads: int) -> NDArray[np.float32]:
    matrix = np.vstack([each.matrix for each in others])
    actual = np.concatenate([each.actual[:, target] for each in others])
    shifted = np.concatenate([each.is_shifted for each in others])
    has = np.isfinite(actual)
    matrix, actual, shifted = matrix[has], actual[has], shifted[has]
    wanted = rows.matrix
    margin, wanted_margin = np.empty(len(matrix), np.float32), np.empty(len(wanted), np.float32)
    for part, mine in ((~shifted, ~rows.is_shifted), (shifted, rows.is_shifted)):
        if part.any():  # each regime its own base model, as one that knew when it changed would have
            some = np.flatnonzero(part)[:: max(1, int(part.sum()) // 40_000)]
            found = fit_base(terms(matrix[some], target), actual[some].astype(float), np.ones(len(some)))
            margin[part] = margins(matrix[part], target, found)
            wanted_margin[mine] = margins(wanted[mine], target, found)
    inputs = np.column_stack([matrix, shifted]).astype(np.float32)
    asked = np.column_stack([wanted, rows.is_shifted]).astype(np.float32)
    logs = np.log(actual)
    plain = _trees(inputs, logs, np.full(len(logs), np.median(logs), np.float32), threads)
    based = _trees(inputs, logs, margin, threads)
    alone = plain.predict(xgboost.DMatrix(asked, base_margin=np.full(len(asked), np.median(logs))))
    joined = based.predict(xgboost.DMatrix(asked, base_margin=wanted_margin))
    answers: NDArray[np.float32] = np.exp(np.array([alone, joined, (alone + joined) / 2])).astype(np.float32)
    return answers


def _trees(
    inputs: NDArray[np.float32], logs: NDArray[np.float32], margin: NDArray[np.float32], threads: int
) -> xgboost.Booster:
    parameters = {
        "objective": "reg:absoluteerror",
        "base_score": 0.0,
        "max_depth": DEPTH,
        "eta": 0.1,
        "subsample": 0.7,
        "colsample_bytree": 0.6,
        "min_child_weight": 20,
        "max_bin": 128,
        "nthread": threads,
        "seed": 1,
    }
    data = xgboost.QuantileDMatrix(inputs, logs, base_margin=margin, max_bin=128, nthread=threads)
    return xgboost.train(parameters, data, ROUNDS)
