"""Estimates which server has computed which prompt prefix, from this picker's own decisions. Pure.

A prompt is cut into blocks of `block_tokens` tokens (4 bytes a token); a block's hash is the xxhash64 of its
bytes seeded with the hash of the block before it, the first with the hash of the model's name. The index maps
a hash to the bit set of rows that hold it, so one walk over a prompt's hashes finds the match length of every
row: a row leaves the walk at its first missing block.

Not every block of a long prompt has an entry: of its first 256 blocks each has one, up to block 1,024 every
fourth, then every sixteenth (`marks_of`). An entry stands for the blocks since the one before: a match is at
most 1.6 % too short, and a prompt of 2,048 blocks takes 512 entries. Bounds count blocks, not entries.
"""

from collections import deque
from collections.abc import Sequence
from itertools import repeat
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
#: Blocks of a server that does not report its number of blocks.
DEFAULT_CAPACITY: Final = 31_250
#: Most blocks of one server, whatever it reports: it bounds what `forget` does at once.
MAX_CAPACITY: Final = 65_536
#: Most blocks of all servers together; one with an entry takes about 200 bytes.
MAX_ENTRIES: Final = 1_000_000
#: Most blocks evicted from the largest server before the largest is determined again.
_SHED: Final = 64
#: Blocks up to which each has an entry, and up to which every `_SPARSE` has one; then every `_SPARSER`.
_DENSE_UP_TO, _SPARSE_UP_TO = 256, 1024
_SPARSE, _SPARSER = 4, 16
#: Entries up to these blocks.
_DENSE_ENTRIES: Final = _DENSE_UP_TO
_SPARSE_ENTRIES: Final = _DENSE_ENTRIES + (_SPARSE_UP_TO - _DENSE_UP_TO) // _SPARSE
#: Entries that a row's records may name beyond twice those that it holds.
_SLACK: Final = 4096


class _Row:
    """What one row holds: when each entry was recorded last, and the records, the oldest first."""

    __slots__ = ("blocks", "clean_at", "named", "number", "records", "stamps")

    def __init__(self) -> None:
        self.stamps: dict[int, int] = {}
        """Hash to the number of the last record that names it."""
        self.records: deque[tuple[int, int, Sequence[int]]] = deque()
        """(number, place of the first one among its prompt's entries, hashes). Entries that a later record
        names are passed over: that record keeps them."""
        self.number = 0
        self.blocks = 0
        self.named = 0
        """Hashes in all records."""
        self.clean_at = _SLACK
        """Hashes in all records at which `clean` is due."""

    def clean(self) -> None:
        """Drop the ends of records that later ones name."""
        stamps = self.stamps
        kept: deque[tuple[int, int, Sequence[int]]] = deque()
        self.named = 0
        for number, place, marks in self.records:
            begin, end = 0, len(marks)
            while begin < end and stamps.get(marks[begin]) != number:
                begin += 1
            while end > begin and stamps.get(marks[end - 1]) != number:
                end -= 1
            if begin < end:
                kept.append((number, place + begin, marks[begin:end]))
                self.named += end - begin
        self.records = kept
        self.clean_at = 2 * self.named + _SLACK


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
        "_rows",
        "_table",
        "block_tokens",
        "entries",
    )

    def __init__(self, table: EndpointTable, *, max_entries: int = MAX_ENTRIES) -> None:
        self._table = table
        self._max_entries = max_entries
        self._holders: dict[int, int] = {}
        """Hash to bit set of rows."""
        self._rows: dict[int, _Row] = {}
        self.block_tokens = MIN_BLOCK_TOKENS
        """Tokens in a block of the index."""
        self._last_rows: Rows | None = None
        """The array of rows matched last, usually the table's ready rows; `_last_bits` is its bit set."""
        self._last_bits = 0
        self.entries = 0
        """Blocks of all rows together."""
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
        """Set the least block size and the longest prompt part matched (both tokens), and a server's blocks.

        With `auto` the block size and a server's blocks follow what servers report.
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
        count = 0
        for mark in marks_of(chain):
            still = holders.get(mark, 0) & alive
            if still != alive:
                _settle(matched, every, alive & ~still, blocks_of(count))
                alive = still
                if not alive:
                    return matched
            count += 1
        _settle(matched, every, alive, blocks_of(count))
        return matched

    def record(self, chain: Sequence[int], row: int) -> None:
        """Note that the row is going to hold these blocks.

        Of one record the tail is evicted first, so that the head, which more prompts share, stays longest.
        """
        if not chain:
            return
        held = self._rows.get(row)
        if held is None:
            held = self._rows[row] = _Row()
        marks = marks_of(chain)
        number = held.number = held.number + 1
        stamps = held.stamps
        fresh = [mark for mark in marks if mark not in stamps]
        stamps.update(zip(marks, repeat(number)))
        held.records.append((number, 0, marks))
        held.named += len(marks)
        if fresh:
            bit = 1 << row
            before = list(map(self._holders.setdefault, fresh, repeat(bit)))
            if before.count(bit) != len(before):
                self._holders.update([(mark, bits | bit) for mark, bits in zip(fresh, before, strict=True)])
            grown = _blocks_among(marks, 0, fresh)
            held.blocks += grown
            self.entries += grown
            self._evict(row, held.blocks - self.capacity(row))
        if held.named > held.clean_at:
            held.clean()
        while self.entries > self._max_entries:
            self._evict(max(self._rows, key=self._size), min(_SHED, self.entries - self._max_entries))

    def discard(self, chain: Sequence[int], row: int, begin: int = 0) -> None:
        """Note that the row does not hold the chain's blocks from `begin` on after all."""
        held = self._rows.get(row)
        if held is not None:
            stamps, marks = held.stamps, marks_of(chain)
            known = {mark for mark in marks if mark in stamps}
            gone = [
                mark for place, mark in enumerate(marks) if blocks_of(place + 1) > begin and mark in known
            ]
            self._drop(held, row, gone, _blocks_among(marks, 0, gone))

    def capacity(self, row: int) -> int:
        """Return how many of the index's blocks the row's server can hold, by what it reported."""
        tokens = self._table.num_blocks.item(row) * self._table.block_size.item(row)
        if tokens <= 0 or not self._auto:
            return self._default_capacity
        return min(max(1, tokens // self.block_tokens), MAX_CAPACITY)

    def forget(self, row: int) -> None:
        """Drop all entries of the row."""
        held = self._rows.get(row)
        if held is not None:
            self._drop(held, row, list(held.stamps), held.blocks)
            del self._rows[row]

    def _size(self, row: int) -> int:
        return self._rows[row].blocks

    def _evict(self, row: int, count: int) -> None:
        """Drop entries for `count` blocks, or a few more, by the age of their records and tails first."""
        held = self._rows[row]
        stamps, records = held.stamps, held.records
        while count > 0 and records:
            number, place, marks = records[0]
            end = len(marks)
            if blocks_of(place + end) - blocks_of(place) > count:
                end = _least(place, end, count)
            rest, going = marks[:-end] if end < len(marks) else (), marks[-end:]
            gone = [mark for mark in going if stamps.get(mark) == number]
            blocks = _blocks_among(going, place + len(rest), gone)
            if rest:
                records[0] = (number, place, rest)
            else:
                records.popleft()
            held.named -= len(going)
            self._drop(held, row, gone, blocks)
            count -= blocks

    def _drop(self, held: _Row, row: int, gone: Sequence[int], blocks: int) -> None:
        """Drop entries that the row has, which stand for this many blocks."""
        bit, holders = 1 << row, self._holders
        deque(map(held.stamps.__delitem__, gone), 0)
        before = list(map(holders.pop, gone))
        if before.count(bit) != len(before):
            holders.update(
                [(mark, bits ^ bit) for mark, bits in zip(gone, before, strict=True) if bits != bit]
            )
        held.blocks -= blocks
        self.entries -= blocks


def marks_of(chain: Sequence[int]) -> Sequence[int]:
    """Return the hashes of the prompt's blocks that have entries."""
    if len(chain) <= _DENSE_UP_TO:
        return chain
    return [
        *chain[:_DENSE_UP_TO],
        *chain[_DENSE_UP_TO + _SPARSE - 1 : _SPARSE_UP_TO : _SPARSE],
        *chain[_SPARSE_UP_TO + _SPARSER - 1 :: _SPARSER],
    ]


def blocks_of(count: int) -> int:
    """Return the blocks that the first `count` entries of a prompt stand for."""
    if count <= _DENSE_ENTRIES:
        return count
    if count <= _SPARSE_ENTRIES:
        return _DENSE_UP_TO + (count - _DENSE_ENTRIES) * _SPARSE
    return _SPARSE_UP_TO + (count - _SPARSE_ENTRIES) * _SPARSER


def _blocks_among(marks: Sequence[int], place: int, some: Sequence[int]) -> int:
    """Return the blocks that some of the entries stand for; the first of `marks` has this place."""
    end = place + len(marks)
    if end <= _DENSE_ENTRIES:
        return len(some)
    if not some:
        return 0
    begin = end - len(some)
    if some[0] == marks[begin - place]:  # all from there on
        return blocks_of(end) - blocks_of(begin)
    among = set(some)
    return sum(blocks_of(at + 1) - blocks_of(at) for at, mark in enumerate(marks, place) if mark in among)


def _least(place: int, end: int, count: int) -> int:
    """Return the fewest of `end` entries, the last ones, that stand for `count` blocks or more."""
    whole = blocks_of(place + end)
    taken = 1
    while whole - blocks_of(place + end - taken) < count:
        taken += 1
    return taken


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
