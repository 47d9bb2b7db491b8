"""From text to tokens and back, without a tokenizer. Pure.

A token is four bytes of UTF-8 (the usual average of English text), so that token counts and block hashes
follow from the bytes alone. In a prompt of token ids, each id is one token. The prompt's digest chooses the
words of the output.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence

BYTES_PER_TOKEN = 4

_WORDS = (
    "able", "bridge", "calm", "delta", "early", "field", "green", "harbour", "island", "joint", "kernel",
    "light", "meadow", "north", "ocean", "plain", "quiet", "river", "stone", "tower", "under", "valley",
    "water", "yellow", "naïve", "übrig", "œuvre", "日本", "🚲",
)  # fmt: skip
_TOKENS = tuple(f"{word} " for word in _WORDS)


def encode_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as bytes, one token each. Raises ValueError when one is outside [0, 2**32)."""
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as error:
        raise ValueError("token ids must lie in [0, 4294967295]") from error


def decode_ids(material: bytes) -> list[int]:
    """Return a prompt's token ids; `encode_ids` of them gives it back, padded with zeros to whole tokens."""
    tokens = -(-len(material) // BYTES_PER_TOKEN)
    return list(struct.unpack(f"<{tokens}I", material.ljust(tokens * BYTES_PER_TOKEN, b"\0")))


def count_tokens(material: bytes) -> int:
    """Return the number of tokens in a prompt, at least 1, as for a model's begin-of-sequence token."""
    return tokens_in(len(material))


def tokens_in(size: int) -> int:
    """Return the number of tokens in a prompt of `size` bytes, at least 1."""
    return max(1, -(-size // BYTES_PER_TOKEN))


def block_hashes(material: bytes, block_size: int, salt: str) -> tuple[int, ...]:
    """Return the 64-bit names of the full blocks, each depending on all bytes before its end.

    `salt` is the adapter's name: different adapters must not share blocks.
    """
    width = block_size * BYTES_PER_TOKEN
    digest = hashlib.blake2b(salt.encode(), digest_size=8).digest()
    names = []
    for start in range(0, len(material) - width + 1, width):
        digest = hashlib.blake2b(material[start : start + width], digest_size=8, key=digest).digest()
        names.append(int.from_bytes(digest, "little"))
    return tuple(names)


def digest_of(material: bytes, seed: int) -> int:
    """Return a 64-bit digest of prompt and seed, which determines the output's length and words."""
    key = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(material, digest_size=8, key=key).digest(), "little")


def natural_length(digest: int, mean: int) -> int:
    """Return the number of tokens after which the model stops of itself: uniform in [mean/2, 3*mean/2]."""
    return max(1, mean // 2 + digest % (mean + 1))


def words(digest: int, start: int, stop: int) -> Iterator[str]:
    """Yield the text of output tokens `start` to `stop` (excluded), the same for the same digest."""
    stride = 1 + digest % (len(_TOKENS) - 1)  # the number of words is prime, so every stride visits all
    for index in range(start, stop):
        yield _TOKENS[(digest // 64 + index * stride) % len(_TOKENS)]


def text(digest: int, tokens: int) -> str:
    """Return the whole output text: known before the first token is sent."""
    return "".join(words(digest, 0, tokens))


def content_sha256(digest: int, tokens: int) -> str:
    """Return the SHA-256, hex, of the whole output text in UTF-8."""
    return hashlib.sha256(text(digest, tokens).encode()).hexdigest()
