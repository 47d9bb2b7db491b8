"""The pools and the traffic of the traces of `bench/accuracy.py`: values only."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from model_server_sim.params import EngineParams

SERVERS: Final = 4
#: Name of the streams that reach the servers past the picker.
FOREIGN: Final = "foreign"

#: Llama 8B on an H100 with a KV cache of 64,000 tokens and 48 sequences, so that queues and preemption occur.
ENGINE: Final = EngineParams(
    num_gpu_blocks=4_000,
    max_num_seqs=48,
    iteration_s=6.4e-3,
    prefill_token_s=36e-6,
    attention_pair_s=1.2e-9,
    decode_sequence_s=30e-6,
    context_token_s=49e-9,
    jitter=0.1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One kind of traffic on one pool."""

    name: str
    streams: str
    """YAML of the workload's streams."""
    engine: EngineParams = ENGINE
    prefill_servers: int = 0
    """The first so many servers only prefill, the others only decode; 0: each does both."""
    slowdown_at: float | None = None
    """Part of the requests after which every server takes twice as long."""
    requests: int = 6000
    """That the picker decides on; in P/D half of them are the decode parts of the others."""
    stall_every_s: float = 15.0
    """Mean time between two stalls of a server."""


_CHAT: Final = """\
- name: chat
  preset: chat
  tenants: {names: {people: 1}}
  arrivals: {type: gamma, rate: %s, cv: 2}
  system_prompts: {count: 20, zipf: 1.0, tokens: 600}
  turns:
    count: {type: geometric, mean: 3.7}
    think_s: {type: lognormal, median: 4, p90: 12, max: 60}
"""
_LONG: Final = """\
- name: long
  preset: long-context
  tenants: {names: {papers: 1}}
  arrivals: {type: gamma, rate: %s, cv: 1.5}
"""
_CODE: Final = """\
- name: code
  preset: code
  tenants: {names: {editors: 1}}
  arrivals: {type: gamma, rate: %s, cv: 2}
"""
_FOREIGN: Final = """\
- name: foreign
  preset: conversation
  arrivals: {type: gamma, rate: %s, cv: 3}
"""

TRACES: Final[Mapping[str, Trace]] = {
    each.name: each
    for each in (
        Trace(name="chat", streams=_CHAT % 5.7 + _FOREIGN % 3),
        Trace(
            name="long-prompts",
            streams=_LONG % 6.0 + _FOREIGN % 2,
            engine=dataclasses.replace(ENGINE, num_gpu_blocks=8_000),
        ),
        Trace(
            name="prefix-heavy",
            streams="""\
- name: rag
  preset: rag
  tenants: {names: {search: 1}}
  arrivals: {type: gamma, rate: 15, cv: 2}
  documents: {count: 400, zipf: 0.963, each: 2, tokens: {type: lognormal, median: 900, p90: 1800, max: 4000}}
"""
            + _FOREIGN % 2,
        ),
        Trace(
            name="mixed",
            streams=_CHAT % 2.6 + _LONG % 2.4 + _CODE % 13 + _FOREIGN % 3,
            engine=dataclasses.replace(ENGINE, num_gpu_blocks=6_000),
        ),
        Trace(
            name="lora",
            streams="""\
- name: lora
  preset: conversation
  tenants: {names: {adapted: 1}}
  arrivals: {type: gamma, rate: 17, cv: 2}
  adapters: {count: 16, zipf: 0.8, base_share: 0.3}
"""
            + _FOREIGN % 2,
            engine=dataclasses.replace(ENGINE, max_loras=4, lora_load_s=0.25),
        ),
        Trace(
            name="p-d",
            streams="""\
- name: pd
  preset: conversation
  tenants: {names: {split: 1}}
  arrivals: {type: gamma, rate: 10.5, cv: 2}
  prompt_tokens: {type: lognormal, median: 2000, p90: 6000, max: 16000}
""",
            prefill_servers=2,
        ),
        Trace(
            name="shift",
            streams=_CHAT % 1.3 + _CODE % 9 + _FOREIGN % 1.5,
            slowdown_at=0.5,
            requests=8000,
        ),
    )
}
