"""How evenly the picker spreads requests: the picker's own router over engine models, on a virtual clock.

Prints one JSON line a figure. A run with one seed is exact; each figure is the worst of several seeds.

    python bench/fairness.py [NAME ...]       the figures whose names begin so; all without a name
"""

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import paired
from typing_extensions import override

from endpoint_picker.config.registry import Registry
from model_server_sim.params import EngineParams
from pool_simulation.faults import Fault, MetricsFreeze, ServerSlows
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.policy import Pick, Policy, Refused, Resume
from pool_simulation.results import NO_SERVER, Results
from pool_simulation.simulation import Simulation
from pool_simulation.workload import Segment, SimulatedRequest, Workload

SERVERS: Final = 8
SEEDS: Final = 3
ENGINE: Final = EngineParams()
REGISTRY: Final = Registry(paired.plugin_loaders(paired.measured_tree()))

MakeRequest = Callable[[int, float, random.Random], SimulatedRequest]
"""(number of the request, arrival, randomness) to the request."""


def request(
    number: int, at: float, chance: random.Random, *, prompt: int = 512, output: int = 128
) -> SimulatedRequest:
    """Return a request whose prompt no other request has."""
    return SimulatedRequest(
        request_id=f"r{number}",
        arrival_s=at,
        prompt=(Segment(chance.getrandbits(63), prompt),),
        output_tokens=output,
        output_segment=chance.getrandbits(63),
        model="m",
    )


def varied(number: int, at: float, chance: random.Random) -> SimulatedRequest:
    """Return a request of varied length: 64 to 2,048 prompt tokens, 16 to 512 of answer."""
    prompt, output = int(64 * 32 ** chance.random()), int(16 * 32 ** chance.random())
    return request(number, at, chance, prompt=prompt, output=output)


class OpenLoop(Workload):
    """Requests that arrive whatever becomes of them, at random times of a rate, or all at once."""

    def __init__(self, make: MakeRequest, seed: int, *, rate: float = 0.0, count: int = 1 << 62) -> None:
        """`rate` is in requests a second; 0: all arrive at time 0."""
        self._make = make
        self._chance = random.Random(seed)
        self._rate = rate
        self._count = count

    @override
    def arrivals(self) -> Iterator[SimulatedRequest]:
        at = 0.0
        for number in range(self._count):
            if self._rate:
                at += self._chance.expovariate(self._rate)
            yield self._make(number, at, self._chance)

    @override
    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        return ()


class Watched(PickerPolicy):
    """Also notes when each server was picked, and how many requests it had in flight by the ledger."""

    def __init__(self, settings: PickerSettings, seed: int) -> None:
        super().__init__(settings, REGISTRY, str(seed))
        self.picks: list[tuple[float, int, int]] = []
        """(time, server, its requests in flight with this one)."""

    @override
    def decide(self, request: SimulatedRequest, resume: Resume) -> Pick | Refused | None:
        answer = super().decide(request, resume)
        if isinstance(answer, Pick) and self.router is not None:
            table, server = self.router.table, answer.servers[0]
            row = table.row_of(self._pool.servers[server].hostport)
            self.picks.append((self._pool.clock.now, server, int(table.inflight_requests[row or 0])))
        return answer


def run(
    workload: Workload,
    policy: Policy,
    *,
    seed: int,
    engines: Sequence[EngineParams] = (ENGINE,) * SERVERS,
    duration_s: float = 1e6,
    faults: Sequence[Fault] = (),
) -> Results:
    """Return what became of the requests."""
    simulation = Simulation(engines, workload, policy, duration_s=duration_s, seed=str(seed), faults=faults)
    return simulation.run()


def counts(results: Results, servers: int = SERVERS) -> list[int]:
    """Return how many requests each server had."""
    found = [0] * servers
    for server in results.servers:
        if server != NO_SERVER:
            found[server] += 1
    return found


def burst(seed: int) -> float:
    """Return max/mean of the servers' requests after 200 requests of equal size at once."""
    results = run(OpenLoop(request, seed, count=200), Watched(PickerSettings(), seed), seed=seed)
    had = counts(results)
    return max(had) * SERVERS / sum(had)


def prefix_groups(config: str, groups: int, pause_s: float) -> Callable[[int], float]:
    """Return a run with new prefix groups, four requests each; it returns most minus least groups."""

    def spread(seed: int) -> float:
        shared = [Segment(1000 + group, 1024) for group in range(groups)]

        def make(number: int, at: float, chance: random.Random) -> SimulatedRequest:
            turn, group = divmod(number, groups)
            own = request(number, at, chance, prompt=64)
            return replace(own, prompt=(shared[group], *own.prompt), arrival_s=turn * 30.0 + group * pause_s)

        policy = Watched(PickerSettings(config=config), seed)
        results = run(OpenLoop(make, seed, count=4 * groups), policy, seed=seed)
        first = [0] * SERVERS
        for each, server in zip(results.requests, results.servers, strict=True):
            if int(each.request_id[1:]) < groups:
                first[server] += 1
        return max(first) - min(first)

    return spread


def share_after(policy: Watched, server: int, since: float, until: float) -> float:
    """Return the server's picks in that time, as a multiple of an equal share."""
    picked = [each for at, each, _ in policy.picks if since <= at < until]
    return picked.count(server) * SERVERS / len(picked)


def knee(engines: Sequence[EngineParams], seed: int) -> float:
    """Return the requests a second that the pool serves when it always has work."""
    results = run(
        OpenLoop(varied, seed, count=4000 * len(engines) // SERVERS),
        Watched(PickerSettings(), seed),
        seed=seed,
        engines=engines,
    )
    ended = np.sort(np.array(results.ended_s))
    # Leave out the start and the tail, in which some servers are idle.
    low, high = int(len(ended) * 0.1), int(len(ended) * 0.7)
    return (high - low) / float(ended[high] - ended[low])


@cache
def half_the_knee() -> float:
    """Return half the requests a second that the pool of equal servers can serve."""
    return 0.5 * knee((ENGINE,) * SERVERS, 1)


def frozen_metrics(frozen_at: float, *, answers: bool = True) -> Callable[[int], float]:
    """Return a run in which a page stands still; it returns the server's share, in equal shares.

    Without `answers` the page no longer comes.
    """

    def share(seed: int) -> float:
        policy = Watched(PickerSettings(), seed)
        run(
            OpenLoop(varied, seed, rate=half_the_knee()),
            policy,
            seed=seed,
            duration_s=frozen_at + 42.0,
            faults=[MetricsFreeze(at_s=frozen_at, server=3, answers=answers)],
        )
        return share_after(policy, 3, frozen_at + 2.5, frozen_at + 42.0)

    return share


def frozen_server(seed: int) -> float:
    """Return how many requests a server gets within 60 s from the moment at which it hangs."""
    policy = Watched(PickerSettings(), seed)
    run(
        OpenLoop(varied, seed, rate=half_the_knee()),
        policy,
        seed=seed,
        duration_s=80.0,
        faults=[ServerSlows(at_s=20.0, server=3, slowness=1e7)],
    )
    return float(sum(1 for at, server, _ in policy.picks if server == 3 and 20.0 <= at < 80.0))


def faster(seed: int) -> float:
    """Return the work of a server twice as fast as the others, as a multiple of twice their mean work."""
    names = ("iteration_s", "prefill_token_s", "decode_sequence_s", "context_token_s")
    fast = replace(ENGINE, **{name: getattr(ENGINE, name) / 2 for name in names})
    engines = (fast, *(ENGINE,) * (SERVERS - 1))
    rate = 0.8 * knee(engines, seed)
    policy = Watched(PickerSettings(), seed)
    results = run(OpenLoop(varied, seed, rate=rate), policy, seed=seed, engines=engines, duration_s=120.0)
    work = [0] * SERVERS
    for at, server in enumerate(results.servers):
        if results.arrived_s[at] > 20.0:
            work[server] += results.prompt_tokens[at] - results.cached_tokens[at] + results.output_tokens[at]
    return work[0] / (2 * sum(work[1:]) / (SERVERS - 1))


def adapter_loads(remember: str, rate: float, seed: int) -> float:
    """Return adapter loads per 1,000 requests: 40 adapters of equal popularity over 8 servers of 4 slots."""
    config = (
        f"plugins: [{{type: lora-affinity-scorer, parameters: {{rememberIdle: {remember}}}}}, "
        "{type: queue-scorer}, {type: kv-cache-utilization-scorer}]"
    )

    def make(number: int, at: float, chance: random.Random) -> SimulatedRequest:
        own = request(number, at, chance, prompt=256, output=64)
        return replace(own, adapter=f"adapter-{chance.randrange(40)}")

    simulation = Simulation(
        (ENGINE,) * SERVERS,
        OpenLoop(make, seed, rate=rate, count=4000),
        Watched(PickerSettings(config=config), seed),
        duration_s=1e6,
        seed=str(seed),
    )
    simulation.run()
    return sum(server.engine.counters.lora_loads for server in simulation.servers) / 4.0


def adapters_against_plain(rate: float) -> Callable[[int], float]:
    """Return a run that compares the memory of idle adapters with the plain scorer, as a ratio of loads."""
    return lambda seed: adapter_loads("1h", rate, seed) / adapter_loads("0", rate, seed)


@dataclass(frozen=True)
class Figure:
    """A figure with its goal: (lowest, highest) value that meets it."""

    name: str
    measure: Callable[[int], float]
    unit: str
    goal: tuple[float, float]
    seeds: int = SEEDS


_SPREADING: Final = (
    "plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, "
    "{type: prefix-cache-scorer}, {type: no-hit-lru-scorer}]"
)


def figures() -> list[Figure]:
    """Return all figures."""
    return [
        Figure("burst_max_over_mean", burst, "ratio", (1.0, 1.2)),
        Figure("prefix_groups_at_once_spread", prefix_groups("", 20, 0.0), "groups", (0, 1)),
        Figure("prefix_groups_apart_spread", prefix_groups(_SPREADING, 20, 1.0), "groups", (0, 1)),
        Figure("frozen_metrics_busy_share", frozen_metrics(20.0), "equal shares", (0.8, 1.2)),
        Figure("frozen_metrics_idle_share", frozen_metrics(0.0), "equal shares", (0.8, 1.2)),
        Figure("missing_metrics_share", frozen_metrics(20.0, answers=False), "equal shares", (0.8, 1.2)),
        Figure("frozen_server_requests_in_60_s", frozen_server, "requests", (0, 40)),
        Figure(
            "adapter_loads_at_2_a_second", adapters_against_plain(2.0), "of the plain scorer's", (0, 1 / 3)
        ),
        Figure(
            "adapter_loads_at_8_a_second", adapters_against_plain(8.0), "of the plain scorer's", (0, 1 / 3)
        ),
        Figure("twice_as_fast_work", faster, "of twice the work", (0.9, 1.1)),
    ]


def main(names: Sequence[str]) -> None:
    """Print the figures whose names begin with one of `names`; all without names."""
    for figure in figures():
        if names and not figure.name.startswith(tuple(names)):
            continue
        low, high = figure.goal
        values = [figure.measure(seed) for seed in range(1, figure.seeds + 1)]
        worst = max(values, key=lambda value: max(value - high, low - value))
        line = {
            "figure": figure.name,
            "value": round(worst, 3),
            "unit": figure.unit,
            "goal": f"{low:g} to {high:g}",
            "ok": low <= worst <= high,
            "runs": [round(value, 3) for value in values],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
