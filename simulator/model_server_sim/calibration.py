"""Published figures, and the closed loop that takes the same measurement on a preset in simulated time. Pure.

Each figure names its software and the lengths of its requests; docs/simulator.md has the sources' addresses.
"""

from dataclasses import replace
from typing import NamedTuple

from model_server_sim.engine import Engine, Request, Sequence
from model_server_sim.params import EngineParams
from model_server_sim.presets import PRESETS


class Load(NamedTuple):
    """A closed loop: `concurrency` requests in flight, all of the same lengths in tokens."""

    concurrency: int
    prompt: int
    output: int
    hit_share: float = 0.0
    """Share of the prompts that the server has in its prefix cache from an earlier load."""


class Outcome(NamedTuple):
    """Means of a closed loop without its first round."""

    ttft_ms: float
    tpot_ms: float
    tokens_s: float


class Figure(NamedTuple):
    """One published number."""

    preset: str
    software: str
    load: Load
    field: str
    """Of `Outcome`."""
    published: float

    def deviation(self) -> float:
        """Return the simulated figure over the published one, minus 1."""
        simulated = float(getattr(closed_loop(PRESETS[self.preset], self.load), self.field))
        return simulated / self.published - 1


_NIM = "NVIDIA NIM 1.8.0"
_TRT = "TensorRT-LLM 0.6.1"
_TRT_FIRST = "TensorRT-LLM 0.5"
FIGURES: tuple[Figure, ...] = (
    Figure("llama-8b-h100", "vLLM 0.21", Load(1, 128, 256), "tpot_ms", 6.48),
    Figure("llama-8b-h100", "vLLM 0.21", Load(4, 128, 256), "tpot_ms", 6.59),
    Figure("llama-8b-h100", "vLLM", Load(256, 256, 256), "tokens_s", 12_500),
    Figure("llama-8b-a100-40gb", "vLLM 0.23", Load(1, 1024, 128), "tpot_ms", 13.3),
    Figure("llama-8b-a100-40gb", "vLLM 0.23", Load(8, 1024, 128, 0.5), "tokens_s", 495),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(1, 5000, 500), "ttft_ms", 406.8),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(1, 500, 2000), "ttft_ms", 47.8),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(1, 5000, 500), "tpot_ms", 18.58),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(5, 5000, 500), "tpot_ms", 21.83),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(25, 5000, 500), "tpot_ms", 38.75),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(50, 5000, 500), "tpot_ms", 59.73),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(25, 5000, 500), "tokens_s", 623.4),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(50, 5000, 500), "tokens_s", 814.4),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(100, 5000, 500), "tokens_s", 917.3),
    Figure("llama-70b-fp8-2xh100", _NIM, Load(100, 5000, 500), "ttft_ms", 7996.0),
    Figure("llama-70b-4xa100", _TRT_FIRST, Load(1, 128, 1), "ttft_ms", 47.0),
    Figure("llama-70b-4xa100", _TRT_FIRST, Load(1, 2048, 1), "ttft_ms", 377.0),
    Figure("llama-70b-4xa100", _TRT, Load(1280, 128, 128), "tokens_s", 2_680),
    Figure("llama-70b-4xa100", _TRT, Load(240, 128, 2048), "tokens_s", 2_100),
    Figure("llama-70b-4xa100", _TRT, Load(120, 2048, 128), "tokens_s", 316),
)


def closed_loop(params: EngineParams, load: Load, rounds: int = 6) -> Outcome:
    """Run `rounds` requests for each place in the loop; the first round, all at once, is not counted."""
    params = replace(params, max_num_seqs=max(256, load.concurrency), jitter=0.0)
    engine = Engine(params, lambda: 0.5)
    total = rounds * load.concurrency
    sent = done = 0
    now, began = 0.0, 0.0
    counted: list[Sequence] = []

    def send() -> None:
        nonlocal sent
        hit = (sent * load.hit_share) % 1 + load.hit_share >= 1
        prompt = min(16, load.prompt) if hit else load.prompt
        engine.submit(Request(request_id=str(sent), prompt_tokens=prompt, output_tokens=load.output), now)
        sent += 1

    for _ in range(load.concurrency):
        send()
    while done < total:
        progress = engine.advance(now)
        for sequence in progress.finished:
            done += 1
            if done > load.concurrency:
                counted.append(sequence)
            else:
                began = now
            if sent < total:
                send()
        due = engine.advance(now).next_due
        if due is None or sent == total:
            break
        now = due
    ttft = sum((s.first_token_at or 0) - s.arrived_at for s in counted) / len(counted)
    gaps = max(1, load.output - 1)
    decode = sum(s.last_token_at - (s.first_token_at or 0) for s in counted) / len(counted) / gaps
    return Outcome(1e3 * ttft, 1e3 * decode, len(counted) * load.output / (now - began))


def table() -> str:
    """Return the comparison as the Markdown table of docs/simulator.md."""
    names = {"ttft_ms": "TTFT, ms", "tpot_ms": "TPOT, ms", "tokens_s": "output tokens/s"}
    rows = ["| preset | load: in flight, prompt/output | figure | published | deviation | software |"]
    rows.append("|---|---|---|---|---|---|")
    for one in FIGURES:
        load = one.load
        text = f"{load.concurrency}, {load.prompt}/{load.output}"
        rows.append(
            f"| `{one.preset}` | {text} | {names[one.field]} | {one.published:g} | {one.deviation():+.0%} "
            f"| {one.software} |"
        )
    return "\n".join(rows) + "\n"
