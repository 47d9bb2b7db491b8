"""The questions of a study, answered by simulated points: how many replicas, which profile, what thresholds.

An answer is given with the 95 % interval over the seeds. Differences between two points are taken seed by
seed, as both saw the same requests.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

from pool_simulation.figures import NAMES, Interval, interval, paired
from pool_simulation.study.profiles import OWN
from pool_simulation.study.runs import Load, Outcome, Point
from pool_simulation.study.search import highest_load, smallest_count

#: Figures of a load, as `Load` names them.
LOADS: Final = tuple(field.name for field in fields(Load))


class Simulates(Protocol):
    """What a study needs of a runner."""

    def outcomes(self, points: Iterable[Point]) -> list[tuple[Outcome, ...]]:
        """Return the outcomes of each point, one for each seed."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """One point with its figures."""

    point: Point
    figures: Mapping[str, Interval]
    """By the names of `Figures`."""
    load: Mapping[str, Interval]
    """By the names of `Load`."""

    @property
    def goodput(self) -> Interval:
        """Return the share of requests within their SLOs."""
        return self.figures["goodput"]


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile that was tried, beside the pool's own."""

    name: str
    measured: Measured
    goodput_gain: Interval
    """Goodput minus that of the pool's own profile."""
    ttft_gain_s: Interval
    """Mean time to first token of the pool's own profile, minus this one's."""


@dataclass(frozen=True, slots=True)
class Study:
    """The answers."""

    goal: float
    """Share of requests that must meet their SLOs."""
    own: Measured
    """The pool as its file describes it."""
    counts: Sequence[Measured]
    """Replica counts that were tried, in order, under the pool's own profile."""
    enough: Measured | None
    """The smallest count that meets the goal; None where none up to the limit does."""
    profiles: Sequence[Profile]
    """The best first; the pool's own is among them."""
    fewer: Profile | None
    """The best profile that is not the pool's own, with one replica less than `enough`, compared with the
    pool's own there. None without `enough`, with one replica, and where no other profile was tried."""
    loads: Sequence[Measured]
    """`enough` under the loads that were tried, in order; empty without `enough`."""
    highest: Measured | None
    """`enough` at the highest load that still meets the goal; None without `enough`."""


def measure(simulate: Simulates, points: Sequence[Point]) -> list[Measured]:
    """Return the figures of each point over the seeds."""
    return [
        Measured(
            point,
            {name: interval([getattr(each.figures, name) for each in outcomes]) for name in NAMES},
            {name: interval([getattr(each.load, name) for each in outcomes]) for name in LOADS},
        )
        for point, outcomes in zip(points, simulate.outcomes(points), strict=True)
    ]


def meets(measured: Measured, goal: float) -> bool:
    """Return whether the goal is met with confidence: by the lower end of the interval, if there is one."""
    goodput = measured.goodput
    return (goodput.mean if math.isnan(goodput.half) else goodput.low) >= goal


def study(
    simulate: Simulates, own: Point, profiles: Mapping[str, str], *, goal: float, most_replicas: int
) -> Study:
    """Answer all questions about a pool. `profiles` are the configurations to try, by name."""
    tried: dict[int, Measured] = {}

    def suffices(replicas: int) -> bool:
        (tried[replicas],) = measure(simulate, [replace(own, replicas=replicas)])
        return meets(tried[replicas], goal)

    (itself,) = measure(simulate, [own])
    count = smallest_count(suffices, start=own.replicas, most=most_replicas)
    enough = tried[count] if count else None
    at = enough.point if enough else own
    loads: dict[float, Measured] = {}
    highest = None
    if enough:
        loads[enough.point.scale] = enough

        def bears(scale: float) -> bool:
            (loads[scale],) = measure(simulate, [replace(at, scale=scale)])
            return meets(loads[scale], goal)

        highest = loads[highest_load(bears)]
    ranked = _ranked(simulate, at, profiles)
    return Study(
        goal=goal,
        own=itself,
        counts=[tried[each] for each in sorted(tried)],
        enough=enough,
        profiles=ranked,
        fewer=_with_one_less(simulate, at, ranked) if enough else None,
        loads=[loads[each] for each in sorted(loads)],
        highest=highest,
    )


def _ranked(simulate: Simulates, at: Point, profiles: Mapping[str, str]) -> list[Profile]:
    configs = {OWN: at.config, **{name: text for name, text in profiles.items() if text != at.config}}
    points = [replace(at, config=config) for config in configs.values()]
    own, *_ = simulate.outcomes(points)
    found = []
    for name, measured, outcomes in zip(
        configs, measure(simulate, points), simulate.outcomes(points), strict=True
    ):
        found.append(
            Profile(
                name,
                measured,
                difference(outcomes, own, "goodput"),
                difference(own, outcomes, "ttft_mean_s"),
            )
        )
    # Goodput to a tenth of a percent, then time to first token: most profiles meet all SLOs at `enough`.
    return sorted(found, key=lambda each: (-round(each.measured.goodput.mean, 3), -each.ttft_gain_s.mean))


def _with_one_less(simulate: Simulates, at: Point, ranked: Sequence[Profile]) -> Profile | None:
    """Try the best other profile with the highest count at which the pool's own does not suffice."""
    best = next((each for each in ranked if each.name != OWN), None)
    if best is None or at.replicas == 1:
        return None
    point = replace(at, replicas=at.replicas - 1)
    tried = _ranked(simulate, point, {best.name: best.measured.point.config})
    return next(each for each in tried if each.name != OWN)


def difference(outcomes: Sequence[Outcome], others: Sequence[Outcome], name: str) -> Interval:
    """Return the interval of a figure minus the other's, seed by seed."""
    return paired(
        [getattr(each.figures, name) for each in outcomes], [getattr(each.figures, name) for each in others]
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two pools under the same requests."""

    first: Measured
    second: Measured
    differences: Mapping[str, Interval]
    """Of each figure, second minus first."""


def compare(simulate: Simulates, others: Simulates, first: Point, second: Point) -> Comparison:
    """Compare two points, each simulated by its own runner under the same seeds."""
    (ones,), (twos,) = simulate.outcomes([first]), others.outcomes([second])
    return Comparison(
        measure(simulate, [first])[0],
        measure(others, [second])[0],
        {name: difference(twos, ones, name) for name in NAMES},
    )
