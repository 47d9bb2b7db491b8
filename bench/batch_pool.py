"""2,000 batch jobs at priority -10 beside a chat with an SLO, on a simulated pool with flow control.

    python bench/batch_pool.py                     one JSON line a figure
    python bench/batch_pool.py --seeds 3 --load 4

Eight servers, each with `--slots` slots (`maxConcurrency` of concurrency-detector). The chat's load swings
between `--load` and half of it, so that the batch has to yield and to come back. The batch client is driven
by the subscriber's own flow, which reads the picker's saturation and queue twice a second.

Chat's goodput is the share of its requests within their SLO, with the jobs beside it against the same chat
alone. A slot is free of chat unless a chat request is in flight on it or waits in the picker for it; the
share of free slots that jobs use is taken every quarter of a second while jobs are left that were not sent.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pool_runs import ENGINE, SERVERS, registry
from typing_extensions import override

from batch_subscriber.flow import FlowSettings, Reading
from pool_simulation.batch_client import STREAM, BatchBeside
from pool_simulation.figures import figures
from pool_simulation.picker_policy import PickerPolicy, PickerSettings
from pool_simulation.policy import Surroundings
from pool_simulation.results import Fate, Results
from pool_simulation.simulation import Simulation
from pool_simulation.workload import Segment, SimulatedRequest, Workload
from pool_simulation.workloads.spec import load
from pool_simulation.workloads.start import prepare

JOBS: Final = 2000
PRIORITY: Final = -10
SLOTS: Final = 80
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
            client.read(now, Reading(saturation=saturation, queued=queued, replicas=SERVERS))
        used = client.in_flight - queued
        chat = int(router.table.inflight_requests.sum()) - used + waiting.get(0, 0)
        if now >= WARM_UP_S and client.left > client.in_flight:
            self.slots.free += max(0, self.total - chat)
            self.slots.used += used
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


def jobs(seed: int) -> list[SimulatedRequest]:
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
        for number in range(JOBS)
    ]


def run(
    seed: int, scale: float, duration: float, slots: int, *, with_jobs: bool
) -> tuple[Results, Slots, BatchBeside | None]:
    """Make one run."""
    chat = Swing(prepare(load(CHAT.format(duration=duration)), Path()).start(seed, scale=scale), seed)
    policy = LookingPolicy(PickerSettings(config=CONFIG.format(slots=slots)), registry(), f"batch/{seed}")
    client = None
    policy.total = SERVERS * slots
    if with_jobs:
        client = BatchBeside(
            chat, jobs(seed), FlowSettings(most=2000), random.Random(f"client/{seed}").random
        )
        policy.client = client
    results = Simulation(
        [ENGINE] * SERVERS, client or chat, policy, duration_s=duration, seed=str(seed)
    ).run()  # fmt: skip
    return results, policy.slots, client


def of_chat(results: Results, until: float) -> float:
    """Return the goodput of the chat's requests."""
    only = Results()
    for at, request in enumerate(results.requests):
        if request.stream != STREAM:
            only.add(
                request, results.fates[at], results.ended_s[at], server=results.servers[at],
                first_token_s=results.first_token_s[at], prompt_tokens=results.prompt_tokens[at],
                output_tokens=results.output_tokens[at], cached_tokens=results.cached_tokens[at],
            )  # fmt: skip
    return figures(only, SERVERS, since_s=WARM_UP_S, until_s=until).goodput


def show(name: str, value: float, unit: str, goal: str, *, ok: bool) -> None:
    """Print a figure."""
    print(
        json.dumps({"figure": name, "value": round(value, 4), "unit": unit, "goal": goal, "ok": ok}),
        flush=True,
    )


def main() -> None:
    """Make the runs and print the figures, the worst of the seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--load", type=float, default=4.0, help="of the chat; its knee is at 8.5")
    parser.add_argument("--slots", type=int, default=SLOTS, help="of one server")
    parser.add_argument("--seconds", type=float, default=150.0)
    given = parser.parse_args()
    falls, uses, served, lasts, goods = [], [], [], [], []
    for seed in range(1, given.seeds + 1):
        alone, _, _ = run(seed, given.load, given.seconds, given.slots, with_jobs=False)
        beside, looks, client = run(seed, given.load, given.seconds, given.slots, with_jobs=True)
        assert client is not None
        last = max((at for at, _ in client.done), default=0.0)
        until = min(given.seconds, last)
        goods.append(of_chat(alone, until))
        falls.append(1 - of_chat(beside, until) / goods[-1])
        uses.append(looks.used / max(looks.free, 1))
        lasts.append(last)
        fates = [
            fate for fate, one in zip(beside.fates, beside.requests, strict=True) if one.stream == STREAM
        ]
        served.append(fates.count(Fate.SERVED))
    show("chat goodput alone", min(goods), "share", "", ok=True)
    show("chat goodput lost beside the jobs", max(falls), "share", "<= 0.02", ok=max(falls) <= 0.02)
    show("free slots used by jobs", min(uses), "share", ">= 0.9", ok=min(uses) >= 0.9)
    show("jobs served", min(served), "jobs", f"= {JOBS}", ok=min(served) == JOBS)
    show("last job served after", max(lasts), "s", "", ok=True)


if __name__ == "__main__":
    main()
