"""The tokens of simulated prompts: bytes for the picker, block hashes for an engine's prefix cache. Pure.

Both depend on the prompt's segments only, so equal leading segments give equal leading bytes and hashes.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from xxhash import xxh64_intdigest

from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from pool_simulation.workload import Segment, SimulatedRequest

_SEGMENT: Final = Struct("<QQ")
_DIGEST: Final = Struct("<Q")
#: Tokens that one digest's bytes stand for.
_DIGEST_TOKENS: Final = _DIGEST.size // BYTES_PER_TOKEN


def prompt_bytes(prompt: Iterable[Segment]) -> bytes:
    """Return the prompt as the picker sees it: BYTES_PER_TOKEN bytes a token."""
    pieces: list[bytes] = []
    for segment_id, tokens in prompt:
        digest = _DIGEST.pack(xxh64_intdigest(_SEGMENT.pack(segment_id, tokens)))
        whole, odd = divmod(tokens, _DIGEST_TOKENS)
        pieces.append(digest * whole)
        if odd:
            pieces.append(digest[: odd * BYTES_PER_TOKEN])
    return b"".join(pieces)


def block_hashes(request: SimulatedRequest, block_size: int) -> tuple[int, ...]:
    """Return a name for each full block of `block_size` tokens of prompt and answer, in order.

    Equal names mean equal tokens up to the block's end under the same weights. Within a segment the names
    count up from a number drawn from the segments so far, which costs far less than a hash of each block.
    """
    path = xxh64_intdigest((request.adapter or request.model).encode())
    names: list[int] = []
    end = 0
    for segment_id, tokens in (*request.prompt, (request.output_segment, request.output_tokens)):
        path = xxh64_intdigest(_SEGMENT.pack(segment_id, tokens), path)
        end += tokens
        base = path >> 2  # what is added then stays below 2**63
        names.extend(range(base + len(names), base + end // block_size))
    return tuple(names)
