"""What a study concludes from outcomes, here computed by a formula instead of simulated."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from pool_simulation.figures import NAMES, Figures, Interval
from pool_simulation.study import findings, search, study
from pool_simulation.study.runs import Load, Outcome, Point

SEEDS = range(5)
OWN = Point("own config", 4)

Formula = Callable[[Point, int], tuple[float, float]]
"""From point and seed to goodput and mean time to first token."""


class Formulas:
    """Stands for the simulation."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula

    def outcomes(self, points: Iterable[Point]) -> list[tuple[Outcome, ...]]:
        return [tuple(self._outcome(point, seed) for seed in SEEDS) for point in points]

    def _outcome(self, point: Point, seed: int) -> Outcome:
        goodput, ttft = self._formula(point, seed)
        figures = replace(
            Figures(**dict.fromkeys(NAMES, 1.0)), goodput=goodput, ttft_mean_s=ttft, ttft_p90_s=2 * ttft
        )
        each = point.scale / point.replicas
        load = Load(in_flight=100 * each, waiting=each, kv_cache=each, requests_per_s=10 * each)
        return Outcome(figures, load)


def needs(replicas: float, noise: float = 0.0) -> Formula:
    """All SLOs are met from so many replicas at scale 1; below, in proportion."""

    def formula(point: Point, seed: int) -> tuple[float, float]:
        return min(1.0, point.replicas / point.scale / replicas) - noise * seed, 0.1

    return formula


def concluded(formula: Formula, most: int = 64, profiles: dict[str, str] | None = None) -> study.Study:
    return study.study(Formulas(formula), OWN, profiles or {}, goal=0.99, most_replicas=most)


@pytest.mark.parametrize(("needed", "start"), [(1, 4), (3, 4), (4, 4), (7, 4), (50, 1), (64, 3)])
def test_the_smallest_count_is_found_with_few_tries(needed: int, start: int) -> None:
    tries: list[int] = []

    def suffices(count: int) -> bool:
        tries.append(count)
        return count >= needed

    assert search.smallest_count(suffices, start=start, most=64) == needed
    assert len(tries) == len(set(tries)) <= 13


def test_no_count_is_found_where_the_most_does_not_suffice() -> None:
    assert search.smallest_count(lambda count: False, start=4, most=20) is None


@pytest.mark.parametrize("borne", [1.0, 1.1, 1.7, 3.9])
def test_the_highest_load_is_found_to_four_percent(borne: float) -> None:
    found = search.highest_load(lambda scale: scale <= borne)
    assert borne / 1.04 <= found <= borne


def test_the_smallest_count_is_named_with_the_one_below() -> None:
    found = concluded(needs(6.5))
    (replicas, *_) = findings.sentences(found, has_slos=True)
    assert replicas.startswith(
        "7 replicas are the smallest count with which 99 % of the requests meet their SLOs"
    )
    assert replicas.endswith(": 100.0 ± 0.0 %; with 6 it is 92.31 ± 0.00 %.")


def test_a_count_suffices_only_with_confidence() -> None:
    # Means of 0.997 and 0.994 over the seeds, with intervals down to 0.9941 and 0.9881.
    sure, unsure = concluded(needs(6.5, noise=0.0015)), concluded(needs(6.5, noise=0.003))
    assert sure.enough is not None
    assert sure.enough.point.replicas == 7
    assert unsure.enough is None


def test_where_no_count_suffices_the_most_is_named() -> None:
    found = concluded(needs(100), most=32)
    (replicas, *more) = findings.sentences(found, has_slos=True)
    assert replicas.startswith(
        "No count up to 32 replicas suffices for 99 % of the requests to meet their SLOs"
    )
    assert "with 32 it is 32" in replicas
    assert len(more) == 1, "thresholds need a count that suffices"


def test_a_workload_without_slos_is_judged_by_what_is_served() -> None:
    assert (
        "are served (the workload states no SLOs)"
        in findings.sentences(concluded(needs(2)), has_slos=False)[0]
    )


def test_thresholds_are_taken_at_the_highest_load_within_the_goal() -> None:
    found = concluded(needs(6.5))
    assert found.highest is not None
    scale = found.highest.point.scale
    # 7 replicas bear 7 / 6.5 / 0.99 = 1.088 times the load.
    assert 1.088 / 1.04 <= scale <= 1.088
    assert found.highest.load["in_flight"].mean == pytest.approx(100 * scale / 7)
    thresholds = findings.sentences(found, has_slos=True)[-1]
    assert f"7 replicas bear {scale:.2f} times this load" in thresholds


def better(gains: dict[str, tuple[float, float]]) -> Formula:
    """By configuration: goodput, and time to first token with a little noise common to all."""

    def formula(point: Point, seed: int) -> tuple[float, float]:
        goodput, ttft = gains[point.config]
        return goodput, ttft + seed * 0.01

    return formula


@pytest.mark.parametrize(
    ("gains", "best"),
    [
        pytest.param({"own config": (1.0, 0.2), "x": (1.0, 0.1)}, "x", id="faster"),
        pytest.param({"own config": (1.0, 0.1), "x": (1.0, 0.2)}, None, id="slower"),
        pytest.param({"own config": (0.995, 0.1), "x": (1.0, 0.2)}, "x", id="more-within-slos"),
        pytest.param({"own config": (1.0, 0.2), "x": (0.995, 0.1)}, None, id="faster-but-fewer-within-slos"),
    ],
)
def test_the_best_profile_has_the_most_within_slos_then_the_shortest_ttft(
    gains: dict[str, tuple[float, float]], best: str | None
) -> None:
    found = concluded(better(gains), profiles={"name of x": "x"})
    chosen = findings.better_profile(found.profiles)
    assert (chosen.name if chosen else None) == (best and "name of x")
    sentence = findings.sentences(found, has_slos=True)[1]
    assert ("The profile name of x is the best of 2 profiles" in sentence) == bool(best)


@pytest.mark.parametrize("saves", [True, False])
def test_a_profile_that_saves_a_replica_is_named(saves: bool) -> None:
    def formula(point: Point, seed: int) -> tuple[float, float]:
        needed = 6 if saves and point.config == "x" else 7
        return (1.0 if point.replicas >= needed * point.scale else 0.5), 0.1

    found = concluded(formula, profiles={"name of x": "x"})
    assert found.enough is not None
    assert found.enough.point.replicas == 7
    text = "With the profile name of x, 6 replicas already suffice: 100.0 ± 0.0 %."
    assert (text in findings.sentences(found, has_slos=True)) == saves
    tried = findings.study_json(found, has_slos=True)["profiles"]["with_one_replica_less"]
    assert tried["replicas"] == 6
    assert tried["figures"]["goodput"]["mean"] == (1.0 if saves else 0.5)


def test_one_replica_is_not_undercut() -> None:
    assert concluded(needs(0.5), profiles={"name of x": "x"}).fewer is None


def test_differences_are_taken_seed_by_seed() -> None:
    # The noise common to both is ten times the difference, and yet the difference has no spread.
    found = concluded(better({"own config": (1.0, 0.2), "x": (1.0, 0.199)}), profiles={"x": "x"})
    gain = found.profiles[0].ttft_gain_s
    assert gain.mean == pytest.approx(0.001)
    assert gain.half < 1e-9


def test_a_comparison_says_what_is_better_beyond_its_margin() -> None:
    first, second = Formulas(better({"own config": (0.9, 0.2)})), Formulas(better({"own config": (0.8, 0.1)}))
    found = study.compare(first, second, OWN, OWN)
    verdicts = {name: findings.verdict(name, change) for name, change in found.differences.items()}
    assert verdicts["goodput"] == "worse"
    assert verdicts["ttft_mean_s"] == "better"
    assert verdicts["tpot_p50_s"] == "="


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Interval(12.345, 0.42), "12.35 ± 0.42 ms"),
        (Interval(1234.5, 30.2), "1234 ± 30 ms"),
        (Interval(0.0, 0.0), "0 ± 0 ms"),
        (Interval(5.0, math.nan), "5.000 ms"),
        (Interval(math.nan, math.nan), "-"),
    ],
)
def test_a_figure_is_shown_with_the_digits_that_its_margin_deserves(value: Interval, text: str) -> None:
    assert findings.shown(value, 1.0, "ms") == text


def test_the_json_has_no_value_that_json_lacks() -> None:
    def formula(point: Point, seed: int) -> tuple[float, float]:
        return (1.0, math.nan)

    text = json.dumps(findings.study_json(concluded(formula), has_slos=True), allow_nan=False)
    assert json.loads(text)["pool"]["figures"]["ttft_mean_s"] == {"mean": None, "half": None}
