"""CPU cost of a decision in one process, by number of endpoints and length of the prompt.

Prints one JSON line a figure: the median of at least seven rounds, in which the cases run interleaved.

    python bench/decision.py                   this tree
    python bench/decision.py --against DIR     CPU ratios to another checkout, with 95 % intervals
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import paired

from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.metrics_page import ENGINES, PageReader
from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
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
    """Return one whole life of a request at the router: decision, first byte, end."""
    record = Record(0.0)

    def unwanted(answer: object) -> None:
        raise AssertionError(answer)

    def act() -> None:
        request = InferenceRequest(request_id="r", model="meta-llama/Llama-3.1-8B", prompt=next(prompts))
        decision = router.decide(request, None, unwanted)
        assert isinstance(decision, Decision)
        router.first_byte(decision, record)
        router.ended(decision, record)

    return act


def prompts_of(size: int) -> Iterator[bytes]:
    """Yield prompts that share their first half with one in eight others, as system prompts do."""
    rng = np.random.default_rng(2)
    heads = [rng.bytes(size // 2) for _ in range(8)]
    tails = [rng.bytes(size // 2) for _ in range(64)]
    while True:
        for number, tail in enumerate(tails):
            yield heads[number % 8] + tail


def page() -> bytes:
    """Return a metrics page of a vLLM server's size, the needed series in its midst."""
    labels = 'engine="0",model_name="meta-llama/Llama-3.1-8B"'
    filler = [f'vllm:some_histogram_bucket{{{labels},le="{n}"}} {n}.0' for n in range(360)]
    needed = [
        f"vllm:num_requests_running{{{labels}}} 3.0",
        f"vllm:num_requests_waiting{{{labels}}} 2.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.25",
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="27456"} 1.0',
    ]
    return "\n".join(["# HELP x", *filler, *needed, *filler, ""]).encode()


def read_page() -> Callable[[], None]:
    """Return the read of one page by a reader that remembers the offsets of its last read."""
    reader, text = PageReader(ENGINES["vllm"]), page()

    def act() -> None:
        reader.read(text)

    return act


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
    return [*short, *long, Case("metrics_page_us", read_page(), 40)]


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


def alone() -> None:
    """Measure and print."""
    chosen = cases()
    figures = medians(chosen)
    for case in chosen:
        report(case.figure, figures[case.figure], "us", case.goal_us)
    hundred, sixteen = figures["decision_us_100_endpoints"], figures["decision_us_16_endpoints"]
    report("decision_cpu_ratio_100_to_16_endpoints", hundred / sixteen, "ratio", 2.5)


def report(figure: str, value: float, unit: str, goal: float) -> None:
    """Print one figure."""
    line = {"figure": figure, "value": round(value, 2), "unit": unit, "goal": goal, "ok": value <= goal}
    print(json.dumps(line))


if __name__ == "__main__":
    paired.command("decision", worker, alone)
