"""What an engine is asked. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation, as the engine needs it."""

    request_id: str
    prompt_tokens: int
    """At least 1."""
    output_tokens: int
    """Tokens after which the generation ends, at least 1."""
    block_hashes: tuple[int, ...] = ()
    """Name of each full block in order, each depending on all before it. May cover output tokens too."""
    adapter: str | None = None
    """LoRA adapter, None for the base model."""
    remote_prefill: bool = False
    """The prompt's keys and values come from another engine: this one transfers them, then decodes."""
    remote_decode: bool = False
    """Another engine decodes: this one computes the prompt and one token, and holds the blocks after that
    until `Engine.release`. `output_tokens` must be 1."""
    token_ids: tuple[int, ...] = ()
    """As far as `block_hashes` go; only KV events need them."""
