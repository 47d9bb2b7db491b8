"""Bundles of small models, fitted in moments: what a trainer would publish."""

import functools
from pathlib import Path

import numpy as np
import xgboost
from numpy.typing import NDArray

from latency_contract.base_model import TERMS
from latency_contract.bundles import Bundle, publish, sha256
from latency_contract.manifest import Manifest, TargetModel, version_name
from latency_contract.matrix import Matrix, build
from latency_contract.regimes import REGIMES
from latency_contract.schema import COLUMN, SCHEMA_HASH, Target
from latency_contract.states import State

QUANTILES = (0.5, 0.9)


def rows_of(count: int, seed: int = 1) -> Matrix:
    """Return a matrix of plausible candidates, unknown values among them."""
    rng = np.random.default_rng(seed)
    unknown = np.where(rng.random(count) < 0.1, np.nan, 1.0)
    return build(
        {
            "input_tokens": rng.integers(1, 8000, count),
            "expected_output_tokens": rng.integers(1, 500, count) * unknown,
            "prefix_hit": rng.random(count),
            "waiting_requests": rng.integers(0, 8, count) * unknown,
            "running_requests": rng.integers(0, 64, count) * unknown,
            "kv_usage": rng.random(count),
            "kv_capacity_tokens": 400_000.0,
            "metrics_age_s": 0.05 * rng.random(count),
            "inflight_requests": rng.integers(0, 64, count),
            "awaiting_requests": rng.integers(0, 8, count),
            "unseen_requests": rng.integers(0, 3, count),
            "prefill_tokens_in_flight": rng.integers(0, 30_000, count),
            "decode_tokens_in_flight": rng.integers(0, 200_000, count),
        },
        count,
    )


@functools.cache
def trees(rounds: int = 20, depth: int = 4, seed: int = 1) -> bytes:
    """Return a model of two heads over the whole matrix, in UBJSON."""
    matrix = rows_of(2000, seed)
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=len(matrix))
    target = (
        np.nan_to_num(matrix[:, COLUMN["uncached_tokens"]]) / 4000
        + 0.3 * np.nan_to_num(matrix[:, COLUMN["waiting_requests"]])
        + 0.2 * noise
    )
    booster = xgboost.train(
        {
            "objective": "reg:quantileerror",
            "quantile_alpha": np.array(QUANTILES),
            "max_depth": depth,
            "base_score": 0.0,
            "nthread": 1,
            "seed": seed,
        },
        xgboost.QuantileDMatrix(matrix, target, nthread=1),
        rounds,
    )
    return bytes(booster.save_raw("ubj"))


def margins(content: bytes, matrix: Matrix) -> NDArray[np.float32]:
    """Return float32[heads, rows] as XGBoost sums the leaves."""
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(content))
    found = booster.inplace_predict(
        matrix, predict_type="margin", base_margin=np.zeros((len(matrix), 2), dtype=np.float32)
    )
    return np.ascontiguousarray(np.asarray(found, dtype=np.float32).T)


def bundle(
    number: int = 1,
    *,
    state: State = State.TRAINED,
    seed: int = 1,
    targets: tuple[Target, ...] = (Target.TTFT, Target.TPOT, Target.E2E),
    degraded: tuple[bool, ...] = (False,) * REGIMES,
) -> Bundle:
    """Return a bundle whose version is the `number`th."""
    content = trees(seed=seed)
    models = {
        target: TargetModel(
            file=f"{target.name.lower()}.ubj",
            sha256=sha256(content),
            quantiles=QUANTILES,
            bound=1,
            coefficients=(0.01,) * len(TERMS[target]),
            offsets=((0.0,) * REGIMES,) * 2,
            degraded=degraded,
            samples=2000,
            stratified_error=0.1,
            recent_error=0.1,
            coverage=0.9,
        )
        for target in targets
    }
    manifest = Manifest(
        version=version_name(number, f"{number:08x}"),
        schema=SCHEMA_HASH.hex(),
        created_s=1.0,
        state=state,
        models=models,
    )
    return Bundle(manifest, dict.fromkeys(targets, content))


def published(folder: Path, number: int = 1, **changes: object) -> str:
    """Publish a bundle; return its version."""
    made = bundle(number, **changes)  # type: ignore[arg-type]
    publish(folder, made)
    return made.manifest.version
