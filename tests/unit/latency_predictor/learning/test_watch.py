"""Calibration and drift of one target: coverage is kept, a move is noticed, a degraded regime is named."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from latency_contract.regimes import REGIMES
from latency_predictor.learning.watch import TargetWatch

Floats = NDArray[np.float32]


def play(watch: TargetWatch, errors: Iterator[float], count: int, regime: int = 0) -> list[bool]:
    """Serve outcomes around a constant prediction of 1 s, calibrating after each ten; return which were below
    their bound."""
    covered: list[bool] = []
    while len(covered) < count:
        some = min(10, count - len(covered))
        offsets = watch.offsets()
        raw = np.zeros((2, some), np.float32)
        served = np.tile(np.exp(offsets[:, regime]), (some, 1)).astype(np.float32)
        outcomes = np.array([next(errors) for _ in range(some)], np.float32)
        covered += [bool(each) for each in outcomes <= np.log(served[:, 1])]
        watch.observe(raw, outcomes, np.full(some, regime), served, offsets)
    return covered


def noise(seed: int, scale: float = 0.2, shift: float = 0.0) -> Iterator[float]:
    chance = np.random.default_rng(seed)
    while True:
        yield float(shift + scale * chance.standard_normal())


def watch_of(errors: Iterator[float]) -> TargetWatch:
    watch = TargetWatch((0.5, 0.9), bound=1, median=0)
    logs = np.array([next(errors) for _ in range(100)], np.float32)
    watch.install(np.zeros((2, 100), np.float32), logs, np.zeros(100, np.intp))
    return watch


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_bound_covers_what_it_says(seed: Any) -> None:
    watch = watch_of(noise(seed))
    covered = play(watch, noise(seed + 10), 1500)
    assert 0.88 <= np.mean(covered) <= 0.92
    assert not any(watch.degraded)


def test_coverage_holds_while_the_spread_changes() -> None:
    watch = watch_of(noise(1))
    play(watch, noise(2), 300)
    covered = play(watch, noise(3, scale=0.4), 1200)
    assert 0.87 <= np.mean(covered) <= 0.93


def test_a_shift_degrades_its_regime_within_200_and_calibration_brings_it_back() -> None:
    watch = watch_of(noise(1))
    play(watch, noise(2), 300)
    errors = noise(3, shift=float(np.log(2)))
    seen = 0
    while not watch.degraded[0]:
        play(watch, errors, 1)
        seen += 1
        assert seen <= 200
    assert watch.degraded == [True, *[False] * (REGIMES - 1)]
    play(watch, errors, 200)
    assert watch.moves >= 1
    assert not watch.degraded[0]
    assert watch.offsets()[0, 0] == pytest.approx(np.log(2), abs=0.06)


def test_one_regime_does_not_speak_for_another() -> None:
    watch = watch_of(noise(1))
    play(watch, noise(2), 100, regime=2)
    play(watch, noise(3, shift=1.0), 100, regime=4)
    assert watch.offsets()[0, 2] == pytest.approx(0, abs=0.06)
    assert watch.offsets()[0, 4] == pytest.approx(1.0, abs=0.1)


def test_without_outcomes_nothing_is_added() -> None:
    watch = TargetWatch((0.5, 0.9), bound=1, median=0)
    assert not watch.offsets().any()
    assert [each[0] for each in watch.errors()] == [0] * REGIMES
