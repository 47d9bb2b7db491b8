"""A chat with an SLO and batch jobs of a negative priority beside it, on a simulated pool with flow control.

The batch client is driven by the subscriber's own flow, which reads the picker's saturation and queue twice a
second. The chat's load swings between `load` and half of it, so that the batch has to yield and to come back.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import override

from batch_subscriber.flow import FlowSettings, Reading
from endpoint_picker.config.registry import Registry
from model_server_sim.presets import PRESETS
from pool_simulation.batch_client import STREAM, BatchBeside
from pool_simulation.figures import figures
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.policy import Surroundings
from pool_simulation.results import Results
from pool_simulation.simulation import Simulation
from pool_simulation.workload import Segment, SimulatedRequest, Workload
from pool_simulation.workloads.spec import load
from pool_simulation.workloads.start import prepare

PRIORITY: Final = -10
#: Llama 70B in FP8 on two H100, with 128 sequences.
ENGINE: Final = replace(PRESETS["llama-70b-fp8-2xh100"], max_num_seqs=128)
WARM_UP_S: Final = 22.0
READ_EVERY_S: Final = 0.5
CHAT: Final = """\
duration_s: {duration}
warmup_s: 22
streams:
- name: chat
  preset: chat
  arrivals: {{type: poisson, rate: 5}}
  system_prompts: {{count: 20, zipf: 1.0, tokens: 1000}}
  turns:
    count: {{type: geometric, mean: 3.7}}
    think_s: {{type: lognormal, median: 4, p90: 12, max: 60}}
  slo: {{ttft_ms: 1000, tpot_ms: 50}}
"""
CONFIG: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: concurrency-detector
  parameters: {{maxConcurrency: {slots}}}
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  priorityBands:
  - priority: 0
  - priority: -10
"""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A pool, its chat and the jobs beside it."""

    servers: int
    load: float
    """Of the chat, for this pool: 0.5 a server is half of its knee with eight servers."""
    slots: int
    """Of one server."""
    jobs: int
    seconds: float


@dataclass
class Slots:
    """Slots that chat leaves free, and those that jobs use, summed over the looks."""

    free: int = 0
    used: int = 0
    looks: int = field(default=0)


class LookingPolicy(PickerPolicy):
    """A picker whose metrics the batch client reads."""

    client: BatchBeside | None = None
    slots: Slots
    total = 0
    servers = 0

    @override
    def start(self, pool: Surroundings) -> None:
        super().start(pool)
        self.slots = Slots()
        self._clock = pool.clock
        self._at = pool.at
        if self.client is not None:
            pool.at(READ_EVERY_S / 2, self._look)

    def _look(self) -> None:
        now, router, client = self._clock.now, self.router, self.client
        assert router is not None
        assert router.flow is not None
        assert client is not None
        flow = router.flow
        flow.look()
        waiting = {band.priority: len(band.by_age) for band in flow.queue.bands}
        queued = waiting.get(PRIORITY, 0)
        self.slots.looks += 1
        if self.slots.looks % 2 == 0:
            saturation = max(flow.gate.stages.values(), default=0.0)
            client.read(now, Reading(saturation=saturation, queued=queued, replicas=self.servers))
        used = client.in_flight - queued
        chat = int(router.table.inflight_requests.sum()) - used + waiting.get(0, 0)
        if now >= WARM_UP_S and client.left > client.in_flight:
            free = max(0, self.total - chat)
            self.slots.free += free
            # While chat comes back jobs still run on places that are chat's.
            self.slots.used += min(used, free)
        self._at(now + READ_EVERY_S / 2, self._look)


class Swing:
    """A workload of which every other 30 s keep half of the arrivals."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._random = random.Random(seed)

    def arrivals(self) -> Iterator[SimulatedRequest]:
        for request in self._workload.arrivals():
            if int(request.arrival_s // 30) % 2 == 0 or self._random.random() < 0.5:
                yield request

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        return self._workload.finished(request, now, served=served)


def make_jobs(count: int, seed: int) -> list[SimulatedRequest]:
    """Return documents to sum up: some 1,000 tokens each, some 300 of answer."""
    chance = random.Random(f"jobs/{seed}")
    return [
        SimulatedRequest(
            request_id=f"job-{number}",
            arrival_s=0.0,
            prompt=(Segment(2**40 + number, min(4000, int(chance.lognormvariate(6.9, 0.5)) + 1)),),
            output_tokens=min(1000, int(chance.lognormvariate(5.7, 0.4)) + 1),
            output_segment=2**41 + number,
            model="m",
            objective="batch",
            priority=PRIORITY,
        )
        for number in range(count)
    ]


@cache
def registry() -> Registry:
    """Return the installed plugins."""
    return Registry.installed()


class Run(NamedTuple):
    """What became of one run."""

    results: Results
    slots: Slots
    client: BatchBeside | None


def run(pool: Beside, seed: int, *, with_jobs: bool) -> Run:
    """Make one run."""
    spec = load(CHAT.format(duration=pool.seconds))
    chat = Swing(prepare(spec, Path()).start(seed, scale=pool.load), seed)
    policy = LookingPolicy(
        PickerSettings(config=CONFIG.format(slots=pool.slots)), registry(), f"batch/{seed}"
    )
    policy.total, policy.servers = pool.servers * pool.slots, pool.servers
    client = None
    if with_jobs:
        chance = random.Random(f"client/{seed}").random
        client = BatchBeside(chat, make_jobs(pool.jobs, seed), FlowSettings(most=2000), chance)
        policy.client = client
    simulation = Simulation(
        [ENGINE] * pool.servers, client or chat, policy, duration_s=pool.seconds, seed=str(seed)
    )
    return Run(simulation.run(), policy.slots, client)


class Compared(NamedTuple):
    """Chat alone and with the jobs beside it."""

    alone: float
    """Share of chat's requests within their SLO, of those that arrived while jobs were left."""
    lost: float
    """Part of it that is lost beside the jobs."""
    used: float
    """Share of the slots that chat leaves free, which jobs use."""
    served: int
    """Jobs."""
    last_s: float
    """When the last job was served."""


def compare(pool: Beside, seed: int) -> Compared:
    """Make two runs with the same chat."""
    alone, beside = run(pool, seed, with_jobs=False), run(pool, seed, with_jobs=True)
    assert beside.client is not None
    last = max((at for at, _ in beside.client.done), default=0.0)
    until = min(pool.seconds, last)
    good = of_chat(alone.results, until, pool.servers)
    return Compared(
        alone=good,
        lost=1 - of_chat(beside.results, until, pool.servers) / good,
        used=beside.slots.used / max(beside.slots.free, 1),
        served=len({job.request_id for _, job in beside.client.done}),
        last_s=last,
    )


def of_chat(results: Results, until: float, servers: int) -> float:
    """Return the goodput of the chat's requests."""
    only = Results()
    for at, request in enumerate(results.requests):
        if request.stream != STREAM:
            only.add(
                request, results.fates[at], results.ended_s[at], server=results.servers[at],
                first_token_s=results.first_token_s[at], prompt_tokens=results.prompt_tokens[at],
                output_tokens=results.output_tokens[at], cached_tokens=results.cached_tokens[at],
            )  # fmt: skip
    return figures(only, servers, since_s=WARM_UP_S, until_s=until).goodput
