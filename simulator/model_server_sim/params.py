"""Capacity and speed of the simulated accelerator and engine: the numbers that determine all timing.

Values only; must not read flags, clocks or the environment.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParams:
    """Capacity and speed of one engine. The defaults resemble an 8B model on one 80 GB accelerator.

    Speeds come from memory traffic and arithmetic in 16 bits: 16 GB of weights are read once an iteration, a
    token of prefill costs about 16 GFLOP, and a token of context holds 128 KiB of keys and values. Raises
    ValueError when a field is out of range.
    """

    block_size: int = 16
    """Tokens in one KV-cache block."""
    num_gpu_blocks: int = 27_000
    """KV-cache blocks: 432,000 tokens, what 56 GB hold."""
    max_num_seqs: int = 256
    """Sequences that may run at once; the rest wait."""
    max_num_batched_tokens: int = 8_192
    """Tokens, prefill and decode together, that one iteration may process. Longer prompts go in chunks."""
    max_model_len: int = 32_768
    """Longest prompt plus output, tokens."""
    max_loras: int = 4
    """Distinct LoRA adapters among the running sequences."""
    iteration_s: float = 0.006
    """Seconds that every iteration takes, whatever its batch: reading the weights, launching kernels."""
    prefill_token_s: float = 40e-6
    """Seconds for each prompt token that is not in the prefix cache."""
    decode_sequence_s: float = 30e-6
    """Seconds for each sequence that decodes in the iteration."""
    context_token_s: float = 40e-9
    """Seconds for each token of context that the iteration's attention reads."""
    jitter: float = 0.02
    """Spread of an iteration's time: a uniform factor within 1 +- jitter, in [0, 1)."""

    def __post_init__(self) -> None:
        """Check every range here, so that the engine does not have to."""
        counts = ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
        for name in counts:
            if getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)}, must be at least 1"
                raise ValueError(msg)
        for name in ("iteration_s", "prefill_token_s", "decode_sequence_s", "context_token_s", "max_loras"):
            if not 0 <= getattr(self, name) < math.inf:
                msg = f"{name} is {getattr(self, name)}, must be a finite number of at least 0"
                raise ValueError(msg)
        if not self.iteration_s > 0:
            raise ValueError("iteration_s must be above 0, or simulated time would stand still")
        if not 0 <= self.jitter < 1:
            msg = f"jitter is {self.jitter}, must be at least 0 and below 1"
            raise ValueError(msg)

    @property
    def longest_sequence(self) -> int:
        """Return the most tokens, prompt and output, that one sequence can ever hold."""
        return min(self.max_model_len, self.num_gpu_blocks * self.block_size)
