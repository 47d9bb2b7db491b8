"""One run of a study, in this process or another: from a point and a seed to its figures."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from endpoint_picker.config.registry import Registry
from model_server_sim.params import EngineParams
from pool_simulation.figures import Figures, figures
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.simulation import Simulation
from pool_simulation.study.groups import Group, shared_out
from pool_simulation.workload import SimulatedRequest, Workload
from pool_simulation.workloads.start import Prepared

#: Longest part of the window with one look at the servers' load, virtual seconds; the fewest parts.
_LOOK_S: Final = 1.0
_FEWEST_LOOKS: Final = 100


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs of a study share."""

    workload: Prepared
    engine: EngineParams
    ports: int = 1
    """Engines in a replica."""
    priorities: dict[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    """Replicas of different labels; empty: all are alike and have none."""

    def labels(self, replicas: int) -> list[dict[str, str]]:
        """Return the pod labels of each engine of a pool of so many replicas."""
        if not self.groups:
            return [{}] * (replicas * self.ports)
        counts = shared_out(self.groups, replicas)
        pods = [
            dict(group.labels) for group, count in zip(self.groups, counts, strict=True) for _ in range(count)
        ]
        return [labels for labels in pods for _ in range(self.ports)]


@dataclass(frozen=True, slots=True)
class Point:
    """What is simulated under each seed."""

    config: str
    """Text of an EndpointPickerConfig; "" for the default."""
    replicas: int
    scale: float = 1.0
    """Multiplies the workload's rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the servers showed on average over the window and the replicas."""

    in_flight: float
    """Requests in one replica, running and waiting."""
    waiting: float
    """Requests that wait in one replica."""
    kv_cache: float
    """Share of KV-cache blocks in use, in [0, 1]."""
    requests_per_s: float
    """Arrivals for each replica."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run."""

    figures: Figures
    load: Load


class _Fitting:
    """A workload whose requests are checked against the engine: it would refuse them without their names."""

    def __init__(self, workload: Workload, engine: EngineParams) -> None:
        self._workload = workload
        self._engine = engine

    def arrivals(self) -> Iterator[SimulatedRequest]:
        return map(self._checked, self._workload.arrivals())

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        return map(self._checked, self._workload.finished(request, now, served=served))

    def _checked(self, request: SimulatedRequest) -> SimulatedRequest:
        tokens, most = request.prompt_tokens + request.output_tokens, self._engine.longest_sequence
        if tokens > most:
            msg = (
                f"request {request.request_id} has {tokens} tokens, and the engine takes {most}; bound the "
                "stream by max_prompt_tokens and a max of output_tokens, or raise the engine's max_model_len"
            )
            raise ValueError(msg)
        if request.adapter and not self._engine.max_loras:
            msg = f"request {request.request_id} wants an adapter, and the engine has max_loras 0"
            raise ValueError(msg)
        return request


@cache
def _registry() -> Registry:
    return Registry.installed()


def run(setup: Setup, point: Point, seed: int) -> Outcome:
    """Simulate once. Equal arguments give an equal outcome.

    Raises ValueError for a configuration that the picker refuses, and for a request that does not fit.
    """
    prepared = setup.workload
    engines = point.replicas * setup.ports
    until = prepared.duration_s
    if not prepared.spec.duration_s:  # traces run to their end, and the last request comes at it
        until = math.nextafter(until / point.scale, math.inf)
    simulation = Simulation(
        [setup.engine] * engines,
        _Fitting(prepared.start(seed, scale=point.scale, priorities=setup.priorities), setup.engine),
        PickerPolicy(PickerSettings(config=point.config), _registry(), str(seed)),
        duration_s=until,
        seed=str(seed),
        labels=setup.labels(point.replicas),
    )
    since = min(prepared.spec.warmup_s, until / 2)
    looks: list[tuple[float, float, float]] = []

    def look() -> None:
        for server in simulation.servers:
            server.settle(simulation.clock.now)
        servers = [server.engine for server in simulation.servers]
        waiting = sum(engine.waiting for engine in servers)
        running = sum(engine.running for engine in servers)
        looks.append((waiting, running, sum(engine.kv_cache_usage for engine in servers)))

    parts = max(_FEWEST_LOOKS, math.ceil((until - since) / _LOOK_S))
    # At a random moment of each part: looks in step with regular arrivals would see one phase only.
    moments = random.Random(f"{seed}/looks").random  # noqa: S311
    for part in range(parts):
        simulation.at(since + (part + moments()) * (until - since) / parts, look)
    found = figures(simulation.run(), engines, since_s=since, until_s=until)
    if not found.requests:
        msg = f"no request arrives from {since:g} s to {until:g} s; raise the rate or the duration"
        raise ValueError(msg)
    looks = looks or [(0.0, 0.0, 0.0)]
    # A run ends with its last request: the servers are idle at the looks that are left then.
    waiting, running, kv_cache = (math.fsum(each) / parts for each in zip(*looks, strict=True))
    load = Load(
        in_flight=(waiting + running) / point.replicas,
        waiting=waiting / point.replicas,
        kv_cache=kv_cache / engines,
        requests_per_s=found.requests / (until - since) / point.replicas,
    )
    return Outcome(found, load)
