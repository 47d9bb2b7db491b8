"""The worker of `bench/decision.py` for trees whose router has `route`, `first_token` and `release`."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import paired

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.request import InferenceRequest, Pick
from endpoint_picker.routing import PoolRouter, build_router

ROUNDS = 9
DECISIONS = 400
SHORT = 64
PROMPT_BYTES = 4096


@dataclass(frozen=True)
class Case:
    """One measurement: the action, and the goal for its cost in microseconds."""

    figure: str
    act: Callable[[], None]
    goal_us: float


def pool(count: int) -> PoolRouter:
    """Return a router over `count` endpoints with unequal load."""
    rng = np.random.default_rng(1)
    registry = Registry(paired.plugin_loaders(paired.measured_tree()))
    router = build_router(rng=rng, registry=registry)
    router.replace_endpoints(
        Endpoint(f"p{n}-rank-0", "default", f"10.0.{n // 250}.{n % 250}", 8000) for n in range(count)
    )
    table, rows = router.table, router.table.ready_rows
    table.waiting[rows] = rng.integers(0, 5, count)
    table.running[rows] = rng.integers(0, 60, count)
    table.kv_usage[rows] = rng.random(count)
    table.scraped_at[rows] = time.monotonic()
    return router


def decide(router: PoolRouter, prompts: Iterator[bytes]) -> Callable[[], None]:
    """Return one whole life of a request at the router: decision, first token, release."""

    def act() -> None:
        request = InferenceRequest(request_id="r", model="meta-llama/Llama-3.1-8B", prompt=next(prompts))
        pick = router.route(request, None)
        assert isinstance(pick, Pick)
        router.first_token(pick)
        router.release(pick)

    return act


def prompts_of(size: int) -> Iterator[bytes]:
    """Yield prompts that share their first half with one in eight others, as system prompts do."""
    rng = np.random.default_rng(2)
    heads = [rng.bytes(size // 2) for _ in range(8)]
    tails = [rng.bytes(size // 2) for _ in range(64)]
    while True:
        for number, tail in enumerate(tails):
            yield heads[number % 8] + tail


def measured(act: Callable[[], None]) -> float:
    """Return the mean CPU microseconds of one call of `act`."""
    start = time.process_time()
    for _ in range(DECISIONS):
        act()
    return (time.process_time() - start) / DECISIONS * 1e6


def cases() -> list[Case]:
    """Return all measurements."""
    short = [
        Case(f"decision_us_{count}_endpoints", decide(pool(count), prompts_of(SHORT)), goal)
        for count, goal in ((3, 100), (16, 100), (32, 120), (100, 200))
    ]
    long = [
        Case(f"decision_us_{count}_endpoints_4k_prompt", decide(pool(count), prompts_of(PROMPT_BYTES)), goal)
        for count, goal in ((3, 150), (16, 150), (32, 170), (100, 250))
    ]
    return [*short, *long]


def medians(all_cases: list[Case]) -> dict[str, float]:
    """Measure the cases in turn and return the median of each."""
    rounds: dict[str, list[float]] = {case.figure: [] for case in all_cases}
    for _ in range(ROUNDS):
        for case in all_cases:
            rounds[case.figure].append(measured(case.act))
    return {figure: statistics.median(values) for figure, values in rounds.items()}


def worker() -> dict[str, float]:
    """Measure decisions only, for a comparison with another tree."""
    return medians([case for case in cases() if case.figure.startswith("decision")])


if __name__ == "__main__":
    print(json.dumps(worker()))
