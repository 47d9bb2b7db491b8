"""Estimates which server has computed which prompt prefix, from this picker's own decisions. Pure.

A prompt is cut into blocks of `block_tokens` tokens (4 bytes a token); a block's hash is the xxhash64 of its
bytes seeded with the hash of the block before it, the first with the hash of the model's name. The index maps
a hash to the bit set of rows that hold it, so one walk over a prompt's hashes finds the match length of every
row: a row leaves the walk at its first missing block.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from xxhash import xxh64_intdigest

from endpoint_picker.datalayer.table import EndpointTable, Floats, Rows

BYTES_PER_TOKEN: Final = 4
#: Smallest block, in tokens. Smaller ones cost more hashing than the finer match is worth.
MIN_BLOCK_TOKENS: Final = 64
#: Largest block, in tokens; a larger scraped block size is cut to this.
MAX_BLOCK_TOKENS: Final = 1024
#: Cap of a prompt's matched part, in tokens.
MAX_PROMPT_TOKENS: Final = 131_072
#: Entries of a server that does not report its number of blocks.
DEFAULT_CAPACITY: Final = 31_250
#: Most entries of one server, whatever it reports: `forget` then takes at most some 20 ms.
MAX_CAPACITY: Final = 65_536
#: Most entries of all servers together; one takes about 200 bytes.
MAX_ENTRIES: Final = 1_000_000
#: Most entries evicted from the largest server before the largest is determined again.
_SHED: Final = 64


class PrefixIndex:
    """Bounded for each server and in total. The least recently used entries are evicted first."""

    __slots__ = (
        "_auto",
        "_default_capacity",
        "_holders",
        "_last_bits",
        "_last_rows",
        "_least_block",
        "_max_entries",
        "_max_tokens",
        "_recent",
        "_table",
        "block_tokens",
        "entries",
    )

    def __init__(self, table: EndpointTable, *, max_entries: int = MAX_ENTRIES) -> None:
        self._table = table
        self._max_entries = max_entries
        self._holders: dict[int, int] = {}
        """Block hash to bit set of rows."""
        self._recent: dict[int, OrderedDict[int, None]] = {}
        """Row to its block hashes, least recently used first."""
        self.block_tokens = MIN_BLOCK_TOKENS
        """Tokens in a block of the index."""
        self._last_rows: Rows | None = None
        """The array of rows matched last, usually the table's ready rows; `_last_bits` is its bit set."""
        self._last_bits = 0
        self.entries = 0
        self.configure()
        table.on_free(self.forget)

    def configure(
        self,
        *,
        auto: bool = True,
        block_tokens: int = MIN_BLOCK_TOKENS,
        max_tokens: int = MAX_PROMPT_TOKENS,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Set the least block size and the longest prompt part matched (both tokens), and a server's entries.

        With `auto` the block size and the entries follow what servers report.
        """
        self._auto = auto
        self._least_block = min(max(block_tokens, MIN_BLOCK_TOKENS), MAX_BLOCK_TOKENS)
        self._max_tokens = max_tokens
        self._default_capacity = min(capacity, MAX_CAPACITY)
        self.follow_block_size()

    def follow_block_size(self) -> None:
        """Use the largest block size that a server reports, from the configured one to MAX_BLOCK_TOKENS.

        Another size makes other hashes: entries made with the old one match nothing and are evicted in time.
        """
        largest = int(self._table.block_size.max(initial=0)) if self._auto else 0
        self.block_tokens = min(max(self._least_block, largest), MAX_BLOCK_TOKENS)

    def hashes(self, model: str, prompt: bytes) -> list[int]:
        """Return the chained hashes of the prompt's full blocks, in order, up to the configured length."""
        size = self.block_tokens * BYTES_PER_TOKEN
        end = min(len(prompt), self._max_tokens * BYTES_PER_TOKEN) - size
        chain: list[int] = []
        if end < 0:
            return chain
        seed = xxh64_intdigest(model.encode())
        for start in range(0, end + 1, size):
            seed = xxh64_intdigest(prompt[start : start + size], seed)
            chain.append(seed)
        return chain

    def match(self, chain: Sequence[int], rows: Rows) -> Floats:
        """Return how many leading blocks of the chain each row holds: a fresh array, in the rows' order."""
        matched: Floats = np.zeros(rows.size)
        holders = self._holders
        if not chain or chain[0] not in holders:
            return matched
        if rows is not self._last_rows:
            self._last_rows, self._last_bits = rows, bits_of(rows)
        every = alive = self._last_bits
        length = 0
        for block in chain:
            still = holders.get(block, 0) & alive
            if still != alive:
                _settle(matched, every, alive & ~still, length)
                alive = still
                if not alive:
                    return matched
            length += 1
        _settle(matched, every, alive, length)
        return matched

    def record(self, chain: Sequence[int], row: int) -> None:
        """Note that the row is going to hold these blocks.

        The tail is entered first, so that the head, which more prompts share, is evicted last.
        """
        if not chain:
            return
        recent = self._recent.get(row)
        if recent is None:
            recent = self._recent[row] = OrderedDict()
        holders, bit, before = self._holders, 1 << row, len(recent)
        refresh = recent.move_to_end
        for block in reversed(chain):
            if block in recent:
                refresh(block)
            else:
                recent[block] = None
                holders[block] = holders.get(block, 0) | bit
        self.entries += len(recent) - before
        self._evict(row, len(recent) - self.capacity(row))
        while self.entries > self._max_entries:
            self._evict(max(self._recent, key=self._size), min(_SHED, self.entries - self._max_entries))

    def discard(self, chain: Sequence[int], row: int) -> None:
        """Note that the row does not hold these blocks after all."""
        recent = self._recent.get(row)
        if recent is None:
            return
        holders, keep, before = self._holders, ~(1 << row), len(recent)
        for block in chain:
            if block in recent:
                del recent[block]
                left = holders[block] & keep
                if left:
                    holders[block] = left
                else:
                    del holders[block]
        self.entries -= before - len(recent)

    def capacity(self, row: int) -> int:
        """Return how many of the index's blocks the row's server can hold, by what it reported."""
        tokens = int(self._table.num_blocks[row]) * int(self._table.block_size[row])
        if tokens <= 0 or not self._auto:
            return self._default_capacity
        return min(max(1, tokens // self.block_tokens), MAX_CAPACITY)

    def forget(self, row: int) -> None:
        """Drop all entries of the row."""
        recent = self._recent.get(row)
        if recent is not None:
            self._evict(row, len(recent))
            del self._recent[row]

    def _size(self, row: int) -> int:
        return len(self._recent[row])

    def _evict(self, row: int, count: int) -> None:
        recent, holders, keep = self._recent[row], self._holders, ~(1 << row)
        for _ in range(count):
            block, _none = recent.popitem(last=False)
            left = holders[block] & keep
            if left:
                holders[block] = left
            else:
                del holders[block]
        self.entries -= max(count, 0)


def _settle(matched: Floats, every: int, bits: int, length: int) -> None:
    """Write `length` at the position that each row of the bit set `bits` has among the rows of `every`."""
    if not length:
        return
    if bits == every:
        matched[:] = length
        return
    if every & (every + 1) == 0:  # rows 0 to n: row number and position are equal
        while bits:
            lowest = bits & -bits
            matched[lowest.bit_length() - 1] = length
            bits ^= lowest
        return
    while bits:
        lowest = bits & -bits
        matched[(every & (lowest - 1)).bit_count()] = length
        bits ^= lowest


def bits_of(rows: Rows) -> int:
    """Return the bit set of the rows."""
    if not rows.size:
        return 0
    flags = np.zeros(int(rows[-1]) + 1, dtype=np.bool_)
    flags[rows] = True
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")
