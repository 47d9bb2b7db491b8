"""From samples to one target's model: base coefficients, and trees on the logarithm of what is left.

No clock, no files. XGBoost runs on as many threads as it is given; equal arguments give an equal model.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import xgboost
from numpy.typing import NDArray

from latency_contract.base_model import margins, terms
from latency_contract.matrix import Matrix
from latency_contract.schema import Target
from latency_predictor.learning.base_fit import fit_base
from latency_predictor.learning.strata import Samples

#: Fewest samples of a target that a model is fitted to.
LEAST_SAMPLES: Final = 30
#: Fewer give a base model alone: trees would learn the noise.
_LEAST_FOR_TREES: Final = 100
#: Bins of a feature's histogram.
_BINS: Final = 64
#: Blocks of time of which every fifth validates the number of rounds.
_BLOCKS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How trees are grown."""

    quantiles: tuple[float, ...] = (0.5, 0.9)
    """Heads, ascending."""
    depth: int = 5
    rate: float = 0.12
    rounds: int = 100
    """At most; as many are taken as a part of the samples that is held back prefers."""
    half_life: float = 4000.0
    """Samples after which one counts half."""
    threads: int = 1
    seed: int = 7


@dataclass(frozen=True, slots=True)
class Fitted:
    """One target's model."""

    coefficients: tuple[float, ...]
    trees: bytes
    """UBJ."""
    quantiles: tuple[float, ...]
    samples: int
    rounds: int
    checked: NDArray[np.float32]
    """float32[heads, k] log seconds for samples that validated the rounds: a fit without them made these."""
    checked_rows: NDArray[np.intp]
    """The k rows among the samples that have the target."""


def fit(samples: Samples, target: Target, settings: FitSettings) -> Fitted | None:
    """Return the model; None when fewer than LEAST_SAMPLES have the target."""
    chosen = samples.where(np.isfinite(samples.actual[:, target]))
    count = len(chosen)
    if count < LEAST_SAMPLES:
        return None
    seconds = chosen.actual[:, target].astype(np.float64)
    newest_first = np.arange(count)[::-1]
    weight = chosen.weight * 0.5 ** (newest_first / settings.half_life)
    coefficients = fit_base(terms(chosen.matrix, target), seconds, weight)
    margin = margins(chosen.matrix, target, coefficients)
    logs = np.log(seconds).astype(np.float32)
    rounds, held = 0, (np.arange(count) * _BLOCKS // count) % 5 == 3
    checked = np.repeat(margin[None, held], len(settings.quantiles), axis=0)
    if count >= _LEAST_FOR_TREES:
        rounds, checked = _rounds(chosen.matrix, logs, margin, weight, held, settings)
    booster = _boost(chosen.matrix, logs, margin, weight, settings, rounds)
    trees = bytes(booster.save_raw("ubj"))
    return Fitted(coefficients, trees, settings.quantiles, count, rounds, checked, np.flatnonzero(held))


def _rounds(
    matrix: Matrix,
    logs: NDArray[np.float32],
    margin: NDArray[np.float32],
    weight: NDArray[np.float64],
    held: NDArray[np.bool_],
    settings: FitSettings,
) -> tuple[int, NDArray[np.float32]]:
    """Return how many rounds predict the rows best that were held back, and their log seconds.

    0 rounds when the base model alone does.
    """
    fitted = ~held
    train = _data(matrix[fitted], logs[fitted], margin[fitted], weight[fitted], settings)
    check = _data(matrix[held], logs[held], margin[held], weight[held], settings, train)
    history: dict[str, dict[str, list[float]]] = {}
    booster = xgboost.train(
        _parameters(settings, int(fitted.sum())),
        train,
        settings.rounds,
        evals=[(check, "held")],
        evals_result=history,
        verbose_eval=False,
        early_stopping_rounds=15,
    )
    losses = np.array(history["held"]["quantile"])
    without = _pinball(logs[held] - margin[held], weight[held], settings.quantiles)
    best = int(losses.argmin())
    if losses[best] >= 0.995 * without:
        return 0, np.repeat(margin[None, held], len(settings.quantiles), axis=0)
    found = booster.predict(check, iteration_range=(0, best + 1), output_margin=True)
    return best + 1, np.ascontiguousarray(np.asarray(found, np.float32).T)


def _pinball(error: NDArray[np.float32], weight: NDArray[np.float64], quantiles: tuple[float, ...]) -> float:
    """Return the mean loss of the base model with each head moved to the quantile of its errors."""
    losses = []
    for quantile in quantiles:
        left = error - np.quantile(error, quantile)
        losses.append(np.average(np.maximum(quantile * left, (quantile - 1) * left), weights=weight))
    return float(np.mean(losses))


def _boost(
    matrix: Matrix,
    logs: NDArray[np.float32],
    margin: NDArray[np.float32],
    weight: NDArray[np.float64],
    settings: FitSettings,
    rounds: int,
) -> xgboost.Booster:
    data = _data(matrix, logs, margin, weight, settings)
    return xgboost.train(_parameters(settings, len(logs)), data, rounds)


def _data(
    matrix: Matrix,
    logs: NDArray[np.float32],
    margin: NDArray[np.float32],
    weight: NDArray[np.float64],
    settings: FitSettings,
    ref: xgboost.QuantileDMatrix | None = None,
) -> xgboost.QuantileDMatrix:
    heads = np.repeat(margin[:, None], len(settings.quantiles), axis=1)
    return xgboost.QuantileDMatrix(
        matrix,
        logs,
        base_margin=heads,
        weight=weight,
        max_bin=_BINS,
        ref=ref,
        nthread=settings.threads,
    )


def _parameters(settings: FitSettings, count: int) -> dict[str, object]:
    return {
        "objective": "reg:quantileerror",
        "quantile_alpha": np.array(settings.quantiles),
        "base_score": 0.0,
        "tree_method": "hist",
        "max_bin": _BINS,
        "max_depth": settings.depth,
        "eta": settings.rate,
        "min_child_weight": max(4.0, count / 400),
        "subsample": 0.7,
        "nthread": settings.threads,
        "seed": settings.seed,
    }
