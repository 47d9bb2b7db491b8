"""Cost of the queue: a dispatch and an arrival with 10,000 requests in 1,000 flows, idle tenants, memory.

Prints a JSON line a figure: microseconds of process CPU, the median of the rounds. A dispatch is what
`advance` costs a request beyond the scheduler's decision: choosing it, correcting its flow at its end, and
its answer. Memory is that of Python's allocator; the proxy's message of headers is outside of it.

    python bench/flowcontrol.py
"""

import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, Final

import paired

sys.path.insert(0, str(paired.measured_tree() / "tests" / "support"))

import envoy_messages as wire
from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal
from endpoint_picker.extproc.picking import Picking
from endpoint_picker.flowcontrol.control import FAIRNESS_HEADERS
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router
from ext_proc.body.usage import Usage
from ext_proc.budget import BodyBudget
from ext_proc.exchange import Exchange
from ext_proc.turns import Turns

ROUNDS: Final = 7
REQUESTS: Final = 10_000
FLOWS: Final = 1_000
IDS_SEEN: Final = 100_000
BODY: Final = 4_096
GOAL_US: Final = 15.0
GOAL_BYTES: Final = 2_048

CONFIG: Final = """
featureGates: [flowControl]
plugins:
- {{type: utilization-detector, parameters: {{queueDepthThreshold: {depth}}}}}
- {{type: queue-scorer}}
- {{type: prefix-cache-scorer}}
- {{type: round-robin-fairness-policy}}
- {{type: token-fairness-policy}}
- {{type: global-strict-fairness-policy}}
schedulingProfiles:
- {{name: default, plugins: [{{pluginRef: queue-scorer}}, {{pluginRef: prefix-cache-scorer}}]}}
flowControl:
  trustTenantHeaders: true
  defaultPriorityBand: {{maxRequests: 100000, fairnessPolicyRef: {policy}}}
  defaultNegativePriorityBand: {{maxRequests: 100000, fairnessPolicyRef: round-robin-fairness-policy}}
  priorityBands: [{{priority: 7, fairnessPolicyRef: token-fairness-policy}},
    {{priority: 8, fairnessPolicyRef: global-strict-fairness-policy}}]
"""
POLICIES: Final = ("global-strict-fairness-policy", "round-robin-fairness-policy", "token-fairness-policy")
_NOW: Final = 1000.0


class Bench:
    """A pool of eight servers that are full until `open` is called."""

    def __init__(self, policy: str, depth: int = 1_000_000) -> None:
        self.now = _NOW
        registry = Registry(paired.plugin_loaders(paired.measured_tree()))
        text = CONFIG.format(policy=policy, depth=depth)
        self.router: PoolRouter = build_router(config_text=text, clock=lambda: self.now, registry=registry)
        assert self.router.flow is not None, self.router.config_error
        self.flow = self.router.flow
        self.router.wake_at = lambda _due: None
        self.router.replace_endpoints(Endpoint(f"p{n}", "d", f"10.0.0.{n}", 8000) for n in range(8))
        self.answers: list[Decision] = []
        self.close()

    def scraped(self, waiting: float) -> None:
        """Write a page of every server."""
        table, ledger = self.router.table, self.router.ledger
        for row in table.ready_rows.tolist():
            table.waiting[row], table.running[row], table.kv_usage[row] = waiting, 10.0, 0.1
            table.scraped_at[row] = self.now
            ledger.scrape_started(row)
            ledger.scrape_succeeded(row)
        table.scrapes += 1

    def close(self) -> None:
        """Let no request pass."""
        self.scraped(1e9)

    def open(self) -> None:
        """Let all requests pass."""
        self.scraped(0.0)

    def resume(self, answer: Decision | Refusal) -> None:
        assert isinstance(answer, Decision)
        self.answers.append(answer)

    def requests(self, count: int, flows: int) -> list[InferenceRequest]:
        return [
            InferenceRequest(
                request_id="r",
                model="m",
                prompt=bytes(400),
                body_bytes=BODY,
                headers={FAIRNESS_HEADERS[0]: f"t{number % flows}"},
            )
            for number in range(count)
        ]

    def enter(self, requests: Sequence[InferenceRequest]) -> None:
        for request in requests:
            self.router.decide(request, None, self.resume)

    def dispatch(self) -> None:
        while self.flow.queue.requests:
            self.flow.advance(self.now)

    def end(self) -> None:
        record = Record(_NOW)
        record.usage = Usage(100, 100, 0)
        for answer in self.answers:
            self.router.ended(answer, record)
        self.answers.clear()


def cpu_us(work: Callable[[], Any], count: int) -> float:
    """Return the microseconds of process CPU an item."""
    gc.collect()
    gc.disable()
    begun = time.process_time()
    work()
    spent = time.process_time() - begun
    gc.enable()
    return spent / count * 1e6


def decisions_alone(bench: Bench, requests: Sequence[InferenceRequest]) -> float:
    """Return what the scheduler's decisions and the ends cost without a queue."""
    scheduler = bench.router.scheduler

    def work() -> None:
        for request in requests:
            answer = scheduler.decide(request, None, admitted=True)
            assert isinstance(answer, Decision)
            bench.answers.append(answer)
        bench.end()

    bench.open()
    return cpu_us(work, len(requests))


def dispatch_cost(policy: str) -> tuple[float, float]:
    """Return the cost of an arrival and of a dispatch beyond its decision."""
    bench = Bench(policy)
    arrivals, dispatches = [], []
    for _ in range(ROUNDS):
        requests = bench.requests(REQUESTS, FLOWS)
        bench.close()
        arrivals.append(cpu_us(lambda given=requests: bench.enter(given), REQUESTS))  # type: ignore[misc]
        assert bench.flow.queue.requests == REQUESTS
        bench.open()

        def work() -> None:
            bench.dispatch()
            bench.end()

        whole = cpu_us(work, REQUESTS)
        dispatches.append(whole - decisions_alone(bench, requests))
    return statistics.median(arrivals), statistics.median(dispatches)


def idle_ids(policy: str) -> tuple[float, int]:
    """Return the cost of a dispatch after IDS_SEEN ids came and went over that before, and the flows kept."""
    bench = Bench(policy)

    def one_round() -> float:
        bench.close()
        bench.enter(bench.requests(2000, 200))
        bench.open()

        def work() -> None:
            bench.dispatch()
            bench.end()

        return cpu_us(work, 2000)

    before = statistics.median([one_round() for _ in range(ROUNDS)])
    for start in range(0, IDS_SEEN, 5000):
        requests = bench.requests(5000, 5000)
        for number, request in enumerate(requests):
            request.headers = {FAIRNESS_HEADERS[0]: f"seen{start + number}"}
        bench.close()
        bench.enter(requests)
        bench.open()
        bench.dispatch()
        bench.end()
    after = statistics.median([one_round() for _ in range(ROUNDS)])
    return after / before, sum(len(band.flows) for band in bench.flow.queue.bands)


def memory() -> float:
    """Return the bytes that a queued request takes beside its body, all of the picker's objects together."""
    bench = Bench("token-fairness-policy")
    metrics, budget = PickerMetrics(), BodyBudget(1 << 30, 1 << 30)
    count = 2_000
    head = {
        "user-agent": "python-httpx/0.28",
        "accept": "*/*",
        "authorization": "Bearer sk-0123456789abcdef",
        ":authority": "gateway.example.com",
        ":scheme": "http",
    }
    messages = [
        (
            wire.request_headers({**head, FAIRNESS_HEADERS[0]: f"t{number % 200}"}),
            wire.request_body(wire.body_of(prompt=f"{number:06}" * (BODY // 6)), end=True),
        )
        for number in range(count)
    ]
    size = len(wire.body_of(prompt=f"{0:06}" * (BODY // 6)))
    kept = []
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    clock, turns = bench.router.pool.clock, Turns(None, 1 << 28)
    for headers, body in messages:
        picking = Picking(bench.router, metrics, bench.now, clock, turns)
        exchange = Exchange(picking, budget)
        exchange.received(headers, bench.now)
        exchange.received(body, bench.now)
        assert exchange.waits
        kept.append(exchange)
    gc.collect()
    spent = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert bench.flow.queue.requests == count
    return spent / count - size


def show(figure: str, value: float, unit: str, goal: str, ok: bool) -> None:
    print(
        json.dumps({"figure": figure, "value": round(value, 3), "unit": unit, "goal": goal, "ok": ok}),
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    for policy in POLICIES:
        arrival, dispatch = dispatch_cost(policy)
        what = f"{REQUESTS} queued in {FLOWS} flows, {policy}"
        show(f"dispatch, {what}", dispatch, "us CPU", f"below {GOAL_US:g}", dispatch < GOAL_US)
        show(f"arrival, {what}", arrival, "us CPU", f"below {GOAL_US:g}", arrival < GOAL_US)
    ratio, flows = idle_ids("token-fairness-policy")
    show(f"dispatch after {IDS_SEEN} ids over before", ratio, "ratio", "at most 1.1", ratio <= 1.1)
    show(f"flows kept after {IDS_SEEN} ids", flows, "flows", "at most 10200", flows <= 10_200)
    spent = memory()
    goal = f"at most {GOAL_BYTES}"
    show(
        f"memory of a queued request beside its body of {BODY} bytes",
        spent,
        "bytes",
        goal,
        spent <= GOAL_BYTES,
    )


if __name__ == "__main__":
    main()
