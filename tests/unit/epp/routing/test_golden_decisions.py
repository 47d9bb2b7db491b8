"""Decisions of a seeded pool, step by step, against a file: a change of structure must change none of them.

HEADROOM_UPDATE_GOLDEN=1 writes the file anew; do so only for a change that is meant to decide otherwise.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import PoolRouter, build_router

GOLDEN = Path(__file__).parent / "golden"
STEPS = 150
SCORERS = (
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "prefix-cache-scorer",
    "running-requests-size-scorer",
    "load-aware-scorer",
    "active-request-scorer",
    "token-load-scorer",
)
ALL = "plugins: [" + ", ".join(f"{{type: {name}}}" for name in SCORERS)
CONFIGS = {
    "default": "",
    "all-scorers": f"{ALL}]",
    "weighted-random": f"{ALL}, {{type: weighted-random-picker, parameters: {{maxNumOfEndpoints: 2}}}}]",
    "filtered": ALL
    + ", {type: label-selector-filter, parameters: {matchExpressions: "
    + "[{key: tier, operator: In, values: [a, b]}]}}, {type: header-based-testing-filter}, "
    + "{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 128}}]",
    "random": "plugins: [{type: random-picker}]",
}


def endpoints(count: int) -> list[Endpoint]:
    return [
        Endpoint(f"p{n}", "default", f"10.0.0.{n}", 8000, labels={"tier": "abc"[n % 3]}, ready=n % 7 != 6)
        for n in range(count)
    ]


def scrape(router: PoolRouter, rng: np.random.Generator) -> None:
    table, rows = router.table, router.table.ready_rows
    for row in rows.tolist():
        router.ledger.scrape_started(row)
        table.waiting[row] = float(rng.integers(0, 6))
        table.running[row] = float(rng.integers(0, 60))
        table.kv_usage[row] = float(rng.random())
        table.scraped_at[row] = 1000.0
        router.ledger.scrape_succeeded(row)
        if rng.random() < 0.1:
            table.waiting[row] = table.running[row] = table.kv_usage[row] = np.nan


def told(answer: object) -> str:
    if not isinstance(answer, Decision):
        return str(getattr(answer, "outcome", answer))
    names = answer.destination.replace("10.0.0.", "").replace(":8000", "").replace(",", " ")
    return f"{names} | {sum(each.tokens for each in answer.reservations)} | {answer.prefix_hit:.4f}"


def history(config: str) -> list[str]:
    rng = np.random.default_rng(7)
    priorities = json.dumps({"objectives": {"batch": {"priority": -1}}})
    router = build_router(
        config_text=config, priorities_text=priorities, clock=lambda: 1000.0, rng=np.random.default_rng(1)
    )
    assert not router.config_error
    router.replace_endpoints(endpoints(12))
    heads = [rng.bytes(256 * (1 + at)) for at in range(4)]
    held: list[Decision] = []
    lines: list[str] = []
    for step in range(STEPS):
        if step % 10 == 5:
            scrape(router, rng)
        if step % 40 == 39:
            router.replace_endpoints(endpoints(int(rng.integers(3, 24))))
        request = InferenceRequest(
            request_id=str(step),
            model=f"m{step % 2}",
            prompt=heads[int(rng.integers(4))] + rng.bytes(int(rng.integers(0, 1200))),
            objective="batch" if step % 9 == 0 else "",
            headers={"test-epp-endpoint-selection": "10.0.0.0, 10.0.0.1, 10.0.0.3"} if step % 13 == 0 else {},
        )
        subset = [f"10.0.0.{n}" for n in range(0, 12, 2)] if step % 11 == 0 else None
        answer = router.decide(request, subset, lambda _answer: None)
        lines.append(told(answer))
        if isinstance(answer, Decision):
            held.append(answer)
        if held and rng.random() < 0.6:
            router.first_byte(held[int(rng.integers(len(held)))], Record(0.0))
        if held and rng.random() < 0.5:
            router.ended(held.pop(int(rng.integers(len(held)))), Record(0.0))
    return lines


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_seed_gives_the_same_decisions(name: str) -> None:
    lines = history(CONFIGS[name])
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("HEADROOM_UPDATE_GOLDEN"):
        file.write_text("\n".join(lines) + "\n")
    assert lines == file.read_text().splitlines()
