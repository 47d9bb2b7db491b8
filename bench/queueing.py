"""Overload of a simulated pool with flow control: twice its capacity, four bands, fifty tenants, ten minutes.

Prints a JSON line a figure, of the requests that arrived after the first minute. The tenants' prompts are 1
to 32 times as long as the shortest; each tenant offers the same tokens. The bands are 20, 10, 0 and -10;
together they offer twice what the pool serves, the highest a sixth of it.

The reference of the highest band is a run with the same requests in which it never waits in the picker, and
the others fill the servers to the same depth.

    python bench/queueing.py [--seed 1] [--minutes 10] [--servers 4] [--load 2.0]
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import merge
from typing import Any, ClassVar, Final

import numpy as np
import paired
from pool_runs import ENGINE
from typing_extensions import override

from endpoint_picker.config.registry import Registry
from endpoint_picker.flowcontrol.policies import UsageLimitPolicy
from endpoint_picker.outcomes import Outcome
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.policy import Surroundings
from pool_simulation.results import Fate, Results
from pool_simulation.simulation import Simulation
from pool_simulation.workload import Segment, SimulatedRequest

TENANTS: Final = 50
LENGTHS: Final = (1, 2, 4, 8, 16, 32)
SHORTEST: Final = 256
OUTPUT: Final = 150
#: Priority to its part of the pool's capacity, at a load of 2.
BANDS: Final = {20: 0.16, 10: 0.34, 0: 0.9, -10: 0.6}
#: Weighted tokens a second that one server serves with this mix, measured by `--calibrate`.
CAPACITY: Final = 13_000.0
#: Band in which every tenant always has requests waiting. Those of the lowest band are refused on arrival as
#: long as they could not be served in time, so its tenants are not always backlogged.
BACKLOGGED: Final = 0
MAX_WAIT_S: Final = 20.0
TTFT_SLO_MS: Final = 3000.0
WARMUP_S: Final = 60.0

CONFIG: Final = f"""
featureGates: [flowControl]
plugins:
- {{type: queue-scorer}}
- {{type: kv-cache-utilization-scorer}}
- {{type: prefix-cache-scorer}}
- {{type: token-fairness-policy}}
- {{type: ceilings}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
flowControl:
  trustTenantHeaders: true
  usageLimitPolicyPluginRef: ceilings
  defaultPriorityBand: {{fairnessPolicyRef: token-fairness-policy}}
  priorityBands:
  - {{priority: -10, fairnessPolicyRef: token-fairness-policy, maxWait: {MAX_WAIT_S:g}s, minShare: 0.05}}
"""


class Same(UsageLimitPolicy):
    """A ceiling of 1 for every band."""

    type_name: ClassVar[str] = "ceilings"

    @override
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        return [1.0] * len(priorities)


class TopPasses(Same):
    """No ceiling for the highest band."""

    @override
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        return [np.inf, *[1.0] * (len(priorities) - 1)]


class Overload:
    """Poisson arrivals of each tenant in each band; requests with fresh prompts of a tenant's own length."""

    def __init__(self, seed: int, seconds: float, rate: float) -> None:
        self._seed = seed
        self._seconds = seconds
        self._rate = rate
        """Weighted tokens a second of the whole pool."""

    def arrivals(self) -> Iterator[SimulatedRequest]:
        return merge(
            *[self._of(tenant, priority) for tenant in range(TENANTS) for priority in BANDS],
            key=lambda request: request.arrival_s,
        )

    def _of(self, tenant: int, priority: int) -> Iterator[SimulatedRequest]:
        draw = random.Random(f"{self._seed}/{tenant}/{priority}")
        length = SHORTEST * LENGTHS[tenant % len(LENGTHS)]
        rate = self._rate * BANDS[priority] / TENANTS / (length + 2 * OUTPUT)
        at = draw.expovariate(rate)
        number = 0
        while at < self._seconds:
            prompt = max(16, round(length * draw.uniform(0.8, 1.2)))
            yield SimulatedRequest(
                request_id=f"{priority}/{tenant}/{number}",
                arrival_s=at,
                prompt=(Segment(draw.getrandbits(63), prompt),),
                output_tokens=max(1, min(4 * OUTPUT, round(draw.expovariate(1 / OUTPUT)))),
                output_segment=draw.getrandbits(63),
                model="m",
                tenant=f"t{tenant}",
                objective=f"p{priority}",
                priority=priority,
                slo_ttft_ms=TTFT_SLO_MS if priority == max(BANDS) else None,
                stream=str(priority),
            )
            number += 1
            at += draw.expovariate(rate)

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        return ()


@dataclass
class Seen:
    """What the queue reported."""

    waits: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Priority to (time, wait) of the requests that were dispatched."""
    ends: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    """(priority, outcome) to their number."""
    most: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Priority to the most requests that waited."""
    depths: list[float] = field(default_factory=list)
    """Mean queue of a server, in samples."""


class Watched(PickerPolicy):
    """A picker whose queue is watched."""

    def __init__(self, settings: PickerSettings, seed: str) -> None:
        super().__init__(settings, registry(), seed)
        self.seen = Seen()
        self._clock: Any = None

    @override
    def start(self, pool: Surroundings) -> None:
        self._clock = pool.clock
        super().start(pool)
        assert self.router is not None
        assert self.router.flow is not None
        self.router.flow.observer = self

        def sample() -> None:
            self.seen.depths.append(sum(each.engine.waiting for each in pool.servers) / len(pool.servers))
            pool.at(pool.clock() + 0.5, sample)

        pool.at(WARMUP_S, sample)

    def revoked(self, priority: int) -> None:
        """Nothing is taken back here."""

    def over(self, tenant: str, priority: int, model: str, outcome: Outcome, waited_s: float | None) -> None:
        seen = self.seen
        seen.ends[priority, outcome.value + (" (before the queue)" if waited_s is None else "")] += 1
        if outcome is Outcome.PICKED:
            seen.waits[priority].append((self._clock(), waited_s or 0.0))
        assert self.router is not None
        assert self.router.flow is not None
        for band in self.router.flow.queue.bands:
            seen.most[band.priority] = max(seen.most[band.priority], band.requests)


@cache
def registry() -> Registry:
    """Return the plugins of the measured tree."""
    return Registry(paired.plugin_loaders(paired.measured_tree()))


def run(given: argparse.Namespace, ceilings: type[UsageLimitPolicy]) -> tuple[Results, Seen]:
    """Make one run."""
    seconds = 60.0 * given.minutes
    settings = PickerSettings(config=CONFIG, plugins={"ceilings": lambda _pool: ceilings})
    policy = Watched(settings, f"queueing/{given.seed}")
    rate = given.load / 2.0 * CAPACITY * given.servers
    simulation = Simulation(
        [ENGINE] * given.servers,
        Overload(given.seed, seconds, rate),
        policy,
        duration_s=seconds,
        seed=str(given.seed),
    )
    return simulation.run(), policy.seen


def ttfts(results: Results, priority: int) -> list[float]:
    """Return the times to first token of a band's served requests."""
    return [
        first - arrived
        for request, fate, arrived, first in zip(
            results.requests, results.fates, results.arrived_s, results.first_token_s, strict=True
        )
        if request.priority == priority and fate is Fate.SERVED and arrived >= WARMUP_S
    ]


def served_tokens(results: Results, priority: int, until: float) -> dict[str, float]:
    """Return the weighted tokens that each tenant of a band was served."""
    found: dict[str, float] = defaultdict(float)
    for number, request in enumerate(results.requests):
        if request.priority != priority or results.fates[number] is not Fate.SERVED:
            continue
        if WARMUP_S <= results.first_token_s[number] < until:
            found[request.tenant] += results.prompt_tokens[number] + 2 * results.output_tokens[number]
    return found


def show(figure: str, value: float, unit: str, goal: str = "", ok: bool | None = None) -> None:
    """Print a figure."""
    line = {"figure": figure, "value": round(float(value), 3), "unit": unit}
    if goal:
        line |= {"goal": goal, "ok": bool(ok)}
    print(json.dumps(line), flush=True)


def main() -> None:
    """Run the reference and the overload, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--load", type=float, default=2.0)
    parser.add_argument("--calibrate", action="store_true", help="print what the servers serve")
    given = parser.parse_args()
    results, seen = run(given, Same)
    end = 60.0 * given.minutes
    total = sum(sum(served_tokens(results, priority, end).values()) for priority in BANDS)
    show("weighted tokens served a second and server", total / (end - WARMUP_S) / given.servers, "tokens/s")
    if given.calibrate:
        return
    reference, _ = run(given, TopPasses)
    report(results, seen, reference, end)


def report(results: Results, seen: Seen, reference: Results, end: float) -> None:
    """Print the figures of a run against its reference."""
    top = max(BANDS)
    times, alone = ttfts(results, top), ttfts(reference, top)
    p99, bare = float(np.percentile(times, 99)), float(np.percentile(alone, 99))
    show("highest band: TTFT p99", p99, "s")
    show("highest band: TTFT p99 without a wait in the picker", bare, "s")
    show("highest band: TTFT p99 over that", p99 / bare, "ratio", "at most 1.1", p99 <= 1.1 * bare)
    within = float(np.mean(np.array(times) <= TTFT_SLO_MS / 1000.0))
    show("highest band: share within its SLO", within, "share", "at least 0.99", within >= 0.99)
    for priority in BANDS:
        waits = [wait for at, wait in seen.waits[priority] if at >= WARMUP_S]
        if waits:
            show(f"band {priority}: wait p99 of those served", np.percentile(waits, 99), "s")
            show(f"band {priority}: served", len(waits), "requests")
        show(f"band {priority}: most that waited", seen.most[priority], "requests")
        tokens = served_tokens(results, priority, end)
        if len(tokens) == TENANTS and priority == BACKLOGGED:
            values = np.array(list(tokens.values()))
            spread = float(np.abs(values / values.mean() - 1.0).max())
            text = f"band {priority}: served tokens of a tenant, largest distance from the mean"
            show(text, spread, "share", "at most 0.1", spread <= 0.1)
    low = min(BANDS)
    waits = [wait for at, wait in seen.waits[low] if at >= WARMUP_S]
    longest = float(np.percentile(waits, 99)) if waits else float("nan")
    ok = bool(waits) and longest <= MAX_WAIT_S
    show("lowest band: wait p99 of those served", longest, "s", f"at most {MAX_WAIT_S:g}", ok)
    for (priority, end_of), count in sorted(seen.ends.items()):
        show(f"band {priority}: {end_of}", count, "requests")
    refused = sum(
        count
        for (priority, end_of), count in seen.ends.items()
        if priority >= 0 and end_of.startswith(Outcome.SATURATED.value) and seen.most[priority] < 5000
    )
    show("bands from 0 up: shed before their capacity", refused, "requests", "0", refused == 0)
    depth = np.array(seen.depths)
    show("queue of a server, mean", depth.mean(), "requests")
    show("queue of a server, p99 of the samples", np.percentile(depth, 99), "requests")


if __name__ == "__main__":
    main()
