"""Capacity and speed of the simulated accelerator and engine: the numbers that determine all timing.

Values only; must not read flags, clocks or the environment.
"""

from dataclasses import dataclass
from typing import Final

_COUNT: Final = (1, 2**31 - 1)
_SECONDS: Final = (0.0, 3600.0)
#: Least and greatest value of each field. Above these, an engine or a metrics page would not fit in memory or
#: in 64 bits; below `iteration_s`'s, an iteration would not move a clock that shows days.
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "block_size": (1, 65_536),
    "num_gpu_blocks": _COUNT,
    "max_num_seqs": _COUNT,
    "max_num_batched_tokens": _COUNT,
    "max_model_len": (1, 10_000_000),
    "max_loras": (0, 10_000),
    "speculative_tokens": (0, 1_000),
    "iteration_s": (1e-6, 3600.0),
    "prefill_token_s": _SECONDS,
    "attention_pair_s": _SECONDS,
    "decode_sequence_s": _SECONDS,
    "context_token_s": _SECONDS,
    "lora_load_s": _SECONDS,
    "draft_token_s": _SECONDS,
    "kv_transfer_s": _SECONDS,
    "kv_transfer_token_s": _SECONDS,
    "speed": (0.001, 1_000.0),
}


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
    """LoRA slots: the distinct adapters that may run at once, and that stay loaded while idle."""
    speculative_tokens: int = 0
    """Tokens that a draft proposes for each sequence and iteration; 0: no speculative decoding."""
    iteration_s: float = 0.006
    """Seconds that every iteration takes, whatever its batch: reading the weights, launching kernels."""
    prefill_token_s: float = 40e-6
    """Seconds for each prompt token that is not in the prefix cache."""
    attention_pair_s: float = 0.0
    """Seconds for each pair of a prefilled token and a token before it (or itself) that it attends to."""
    decode_sequence_s: float = 30e-6
    """Seconds for each token that the iteration checks of a decoding sequence: 1 + `speculative_tokens`."""
    context_token_s: float = 40e-9
    """Seconds for each token of context that the iteration's attention reads."""
    lora_load_s: float = 0.05
    """Seconds that loading an adapter into a slot adds to the iteration that first needs it.

    vLLM's worker loads adapters before it executes the batch, so the whole batch waits.
    """
    draft_token_s: float = 0.0005
    """Seconds that the draft of one speculative token adds to an iteration."""
    acceptance_rate: float = 0.7
    """Probability that a drafted token is accepted, given that all before it were, in [0, 1)."""
    kv_transfer_s: float = 0.002
    """Seconds to begin a transfer of keys and values from another engine."""
    kv_transfer_token_s: float = 10e-6
    """Seconds for each token whose keys and values come from another engine."""
    speed: float = 1.0
    """Speed class: every iteration takes its time divided by this factor; 2.0 is twice as fast."""
    jitter: float = 0.02
    """Spread of an iteration's time: a uniform factor within 1 +- jitter, in [0, 1)."""

    def __post_init__(self) -> None:
        """Check every range here, so that the engine does not have to."""
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:  # NaN is refused too
                below = isinstance(value, int) and value < least
                bounds = f"at least {least}" if below else f"from {least:g} to {most:g}"
                msg = f"{name} is {str(value)[:40]}, must be {bounds}"
                raise ValueError(msg)
        for name in ("jitter", "acceptance_rate"):
            if not 0 <= getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)}, must be at least 0 and below 1"
                raise ValueError(msg)
        if self.max_num_batched_tokens < self.max_num_seqs * (1 + self.speculative_tokens):
            msg = (
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, must be at least max_num_seqs x "
                f"(1 + speculative_tokens) = {self.max_num_seqs * (1 + self.speculative_tokens)}"
            )
            raise ValueError(msg)

    @property
    def longest_sequence(self) -> int:
        """Return the most tokens, prompt and output, that one sequence can ever hold."""
        room = self.num_gpu_blocks * self.block_size - self.speculative_tokens
        return min(self.max_model_len, max(0, room))

    @property
    def tokens_per_iteration(self) -> float:
        """Return the mean tokens that one iteration gives a decoding sequence.

        (1 - a^(k+1)) / (1 - a) for k drafted tokens of acceptance rate a: Leviathan, Kalman, Matias, "Fast
        Inference from Transformers via Speculative Decoding" (2023), equation 1.
        """
        rate = self.acceptance_rate
        return (1 - rate ** (1 + self.speculative_tokens)) / (1 - rate) if self.speculative_tokens else 1.0
