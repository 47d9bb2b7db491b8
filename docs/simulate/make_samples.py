"""Writes the sample traces beside this file: invented requests in Azure's and in Mooncake's format.

    .venv/bin/python docs/simulate/make_samples.py

`--check` compares instead of writing. Both are drawn from the presets of `pool_simulation.workloads`; no row
comes from a published trace.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Final

from pool_simulation.workload import SimulatedRequest
from pool_simulation.workloads import spec, start

FOLDER: Final = Path(__file__).parent
_BLOCK_TOKENS: Final = 512
_BEGIN: Final = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)

_AZURE: Final = """
duration_s: 600
streams:
  - {name: azure, preset: conversation, arrivals: {type: gamma, rate: 2, cv: 1.5}}
"""
_MOONCAKE: Final = """
duration_s: 600
streams:
  - name: mooncake
    preset: agent
    arrivals: {type: poisson, rate: 0.5}
    system_prompts: {count: 3, zipf: 1, tokens: 2048}
"""


def azure() -> str:
    """Return the sample in Azure's format."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for request in islice(_requests(_AZURE, answer_s=0), 200):
        moment = _BEGIN + timedelta(seconds=request.arrival_s)
        lines.append(f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{request.prompt_tokens},{request.output_tokens}")
    return "\n".join(lines) + "\n"


def mooncake() -> str:
    """Return the sample in Mooncake's format."""
    known: dict[object, int] = {}
    lines = []
    for request in islice(_requests(_MOONCAKE, answer_s=4), 120):
        row = {
            "timestamp": round(request.arrival_s * 1000),
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": _hash_ids(request, known),
        }
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def _requests(text: str, answer_s: float) -> Iterator[SimulatedRequest]:
    """Yield the requests in order of arrival, as from a pool that answers each after `answer_s`."""
    workload = start.prepare(spec.load(text), FOLDER).start(seed=1)
    found = list(workload.arrivals())
    for request in found:  # grows while it is read
        found.extend(workload.finished(request, request.arrival_s + answer_s))
    yield from sorted(found, key=lambda request: request.arrival_s)


def _hash_ids(request: SimulatedRequest, known: dict[object, int]) -> list[int]:
    """Return the id of each block; an id stands for the block's content and all before it."""
    ids: list[int] = []
    content: list[tuple[int, int, int]] = []
    room = _BLOCK_TOKENS
    for segment in request.prompt:
        begin = 0
        while begin < segment.tokens:
            taken = min(room, segment.tokens - begin)
            content.append((segment.segment_id, begin, taken))
            begin, room = begin + taken, room - taken
            if not room:
                ids.append(known.setdefault((ids[-1] if ids else -1, *content), len(known)))
                content, room = [], _BLOCK_TOKENS
    if content:
        ids.append(known.setdefault((ids[-1] if ids else -1, *content), len(known)))
    return ids


def main() -> int:
    """Write the samples, or compare them."""
    status = 0
    for name, text in (("azure-sample.csv", azure()), ("mooncake-sample.jsonl", mooncake())):
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(text)
        elif (FOLDER / name).read_text() != text:
            sys.stderr.write(f"{name} differs: run docs/simulate/make_samples.py\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
