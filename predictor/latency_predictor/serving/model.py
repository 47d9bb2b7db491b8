"""A bundle in memory: from an asked matrix to calibrated seconds. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from latency_contract.base_model import margins
from latency_contract.bundles import Bundle
from latency_contract.calibration import seconds
from latency_contract.manifest import Manifest, TargetModel
from latency_contract.matrix import Matrix
from latency_contract.prediction_wire import Prediction, PredictionRequest
from latency_contract.regimes import regimes_of
from latency_contract.schema import WIDTH, Target
from latency_contract.states import State
from latency_predictor.serving import forest, kernel
from latency_predictor.serving.forest import Forest, ForestError

#: Distance up to which a quantile of the wire, which is a float32, is a model's quantile.
_SAME: Final = 1e-4
#: Largest difference between the compiled kernel and numpy in the check of a new bundle.
TOLERANCE: Final = 1e-5
#: Rows of that check.
_CHECKED: Final = 32


class UnknownQuantileError(ValueError):
    """No head of the model is the quantile that is asked for."""


@dataclass(frozen=True, slots=True)
class _Served:
    """One target."""

    model: TargetModel
    trees: Forest
    offsets: NDArray[np.float32]
    """float32[heads, REGIMES]."""
    degraded: NDArray[np.uint8]
    """uint8[REGIMES]."""


class ServingModel:
    """What is answered from."""

    __slots__ = ("_targets", "manifest")

    def __init__(self, manifest: Manifest, trees: Mapping[Target, Forest]) -> None:
        self.manifest = manifest
        self._targets = {
            target: _Served(
                model,
                trees[target],
                np.asarray(model.offsets, dtype=np.float32),
                np.asarray(model.degraded, dtype=np.uint8),
            )
            for target, model in manifest.models.items()
        }

    @property
    def trees(self) -> Mapping[Target, Forest]:
        """Return the trees of each target."""
        return {target: each.trees for target, each in self._targets.items()}

    def predict(self, asked: PredictionRequest) -> Prediction:
        """Return the answer. Raises UnknownQuantileError."""
        matrix = asked.matrix
        rows = len(matrix)
        found = np.full((len(asked.targets), len(asked.quantiles), rows), np.nan, dtype=np.float32)
        untrusted = np.zeros(rows, dtype=np.uint8)
        regimes = regimes_of(matrix)
        for at, target in enumerate(asked.targets):
            served = self._targets.get(target)
            if served is None:
                continue
            raw = kernel.sums_of(served.trees, matrix)
            raw += margins(matrix, target, served.model.coefficients)
            heads = _heads(served.model, asked.quantiles)
            found[at] = seconds(raw, served.offsets, regimes)[heads]
            if served.degraded.any():
                untrusted |= served.degraded[regimes]
        return Prediction(self.manifest.state, self.manifest.version, asked.targets, untrusted, found)


def warming(asked: PredictionRequest) -> Prediction:
    """Return the answer of a server without a bundle."""
    rows = len(asked.matrix)
    nothing = np.full((len(asked.targets), len(asked.quantiles), rows), np.nan, dtype=np.float32)
    return Prediction(State.WARMING, "", asked.targets, np.zeros(rows, dtype=np.uint8), nothing)


def _heads(model: TargetModel, quantiles: Sequence[float]) -> list[int]:
    heads = []
    for quantile in quantiles:
        at = min(range(len(model.quantiles)), key=lambda each: abs(model.quantiles[each] - quantile))
        if abs(model.quantiles[at] - quantile) > _SAME:
            has = ", ".join(f"{each:g}" for each in model.quantiles)
            msg = f"no head of the model is the quantile {quantile:g}; it has {has}"
            raise UnknownQuantileError(msg)
        heads.append(at)
    return heads


def serving_model(bundle: Bundle, before: ServingModel | None) -> ServingModel:
    """Return the model of a verified bundle; trees that `before` has already are taken from it.

    New trees are tried on a few rows by both ways of evaluation. Raises ForestError.
    """
    trees: dict[Target, Forest] = {}
    for target, model in bundle.manifest.models.items():
        known = None if before is None else before.manifest.models.get(target)
        if before is not None and known is not None and known.sha256 == model.sha256:
            trees[target] = before.trees[target]
            continue
        made = forest.read(bundle.trees[target], width=WIDTH, heads=len(model.quantiles))
        _check(made)
        trees[target] = made
    return ServingModel(bundle.manifest, trees)


def _check(trees: Forest) -> None:
    matrix = _trial_rows(trees)
    difference = np.abs(kernel.sums_of(trees, matrix) - kernel.sums_in_numpy(trees, matrix))
    if not (difference <= TOLERANCE).all():
        msg = f"the two evaluations of a model differ by {difference.max():g}"
        raise ForestError(msg)


def _trial_rows(trees: Forest) -> Matrix:
    """Return rows around the model's own thresholds, with unknown values among them."""
    rows = np.zeros((_CHECKED, WIDTH), dtype=np.float32)
    for column in range(WIDTH):
        cuts = trees.cuts[trees.cuts_from[column] : trees.cuts_from[column + 1]]
        if cuts.size:
            rows[:, column] = np.resize(cuts[:: max(1, cuts.size // _CHECKED)], _CHECKED)
            rows[column % _CHECKED, column] = np.nan
    return rows
