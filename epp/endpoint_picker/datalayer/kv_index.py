"""Which server holds which KV-cache block, as the servers' own events say. Pure; the clock is passed in.

A block's *key* is the chained xxhash64 of its token ids, begun with the adapter's name, so that equal keys
mean equal tokens from the beginning of the prompt on, under the same weights. The engines' own hashes stay
with their source (kv_blocks.py). The index maps a key to the bit set of the *sources* that hold it, by
tier; a source is one publisher, a server's engine or one of its data-parallel ranks. A lookup walks a
prompt's keys once, whatever the number of sources; a source leaves the walk at its first missing block.

A source that is cleared gets another bit at once; the blocks under the old one go in small portions
(`sweep`), so that no event holds the loop for as long as 100,000 blocks take.

Memory: a block that one source holds takes about 160 bytes, here and in kv_blocks.py together; a block that
several hold takes 70 to 100 for each further source. `max_entries` bounds them all.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from endpoint_picker.datalayer.kv_events import DEFAULT_MEDIUM, HASH_MASK, TOKEN_BYTES
from endpoint_picker.datalayer.kv_shards import Shards
from endpoint_picker.datalayer.table import Floats, Rows

#: Tokens in a block until events show the engines' own size.
DEFAULT_BLOCK_TOKENS: Final = 16
#: Most blocks of all sources together: 20 servers of 125,000 blocks, some 400 MB.
MAX_ENTRIES: Final = 2_500_000
#: Most blocks of one source.
MAX_SOURCE_ENTRIES: Final = 500_000
#: Bytes that a block takes, for sizes given in bytes.
ENTRY_BYTES: Final = 160
#: Most different tiers.
MAX_TIERS: Final = 8
#: Most blocks that count as held by prompts on their way.
MAX_SPECULATIVE: Final = 200_000
#: Most distinct model names, and most distinct adapter names, that the index keeps.
MAX_MODELS: Final = 64
MAX_ADAPTERS: Final = 10_000
#: Parts of a tier's dict: at 2,500,000 blocks enlarging one takes half a millisecond.
TIER_SHARDS: Final = 256
#: Parts of a source's dict, the same at `MAX_SOURCE_ENTRIES`. A part that is used takes 230 bytes at least.
SOURCE_SHARDS: Final = 32
#: Longest part of a prompt that is looked up, in blocks.
MAX_BLOCKS: Final = 8192
#: Seconds without an event after a prompt was computed whose blocks should have been announced.
SILENT_AFTER_S: Final = 5.0
#: Cleared sources that wait for `sweep`; beyond that each further one has a portion removed at once.
MAX_SWEPT: Final = 256
#: Blocks of that portion.
SWEPT_AT_ONCE: Final = 2000
#: Bytes of a block's tail that count as one more block.
TAIL_BYTES: Final = 128

_NO_EXTRA: Final[Mapping[int, bytes]] = {}
_NO_WEIGHTS: Final[Mapping[str, float]] = {}

Flags = NDArray[np.bool_]


class Place(NamedTuple):
    """Where a block of an engine ends in the chain of keys, when it is not just one block of the index."""

    end: int
    """Key of the last whole block of the index up to its end."""
    tail: bytes
    """Its tokens after that block."""
    carried: tuple[int, ...]
    """Keys of the blocks of the index that end within it."""


def beyond_one(place: int | Place) -> int:
    """Return how many further blocks' memory a block takes."""
    if isinstance(place, int):
        return 0
    return max(0, len(place.carried) - 1) + len(place.tail) // TAIL_BYTES


Holders = Shards[int]
"""Key to bit set of slots."""
Blocks = Shards[int | Place]
"""A source's blocks on one tier by the engine's hash. A number is the one key that the block carries."""


class Slot:
    """A source's place in the bit sets."""

    __slots__ = ("bit", "number", "row")

    def __init__(self, number: int, row: int) -> None:
        self.number = number
        self.bit = 1 << number
        self.row = row


class KvIndex:
    """The blocks of all sources. Not thread-safe."""

    __slots__ = (
        "_default_block",
        "_expected",
        "_free",
        "_known",
        "_live",
        "_numbers_made",
        "_row_of",
        "_rows",
        "_seed",
        "_silent",
        "_slots",
        "_speculative",
        "_speculative_ends",
        "_speculative_until",
        "_swept",
        "_trusted",
        "_trusted_rows",
        "_weights",
        "adapters",
        "admitted",
        "answers",
        "block_tokens",
        "entries",
        "evicted",
        "lookup_hits",
        "lookup_max_hits",
        "lookups",
        "max_entries",
        "models",
        "on_lookup",
        "shows_metrics",
        "tiers",
    )

    def __init__(self) -> None:
        self.tiers: dict[str, Holders] = {DEFAULT_MEDIUM: Shards(TIER_SHARDS)}
        self._weights: Mapping[str, float] = {}
        self.block_tokens = DEFAULT_BLOCK_TOKENS
        """Tokens in a block of the index."""
        self._default_block = DEFAULT_BLOCK_TOKENS
        self._seed = 0
        self.models: set[str] = set()
        """Names of the base model, as the publishers' topics have them."""
        self.adapters: set[str] = set()
        """Names of adapters in events."""
        self.max_entries = MAX_ENTRIES
        self.entries = 0
        """Blocks that sources hold, those of sources that are being swept included. One of several blocks'
        memory (`beyond_one`) counts as so many."""
        self._slots: dict[int, Slot] = {}
        self._row_of: Rows = np.zeros(0, dtype=np.intp)
        """Row of each slot in use, by its number."""
        self._rows: dict[int, list[Slot]] = {}
        """Row to its sources, in the order of their ranks."""
        self._live = 0
        """Bit set of the slots in use."""
        self._free: list[int] = []
        self._numbers_made = 0
        self._swept: deque[tuple[Holders, Iterator[int], int, int]] = deque()
        """(tier, keys left, number of the slot, blocks) of cleared sources."""
        self._known: set[int] = set()
        """Rows whose sources have all told what they hold."""
        self._expected: dict[int, float] = {}
        """Row to the time since when events of a prompt are due."""
        self._silent: set[int] = set()
        """Rows whose events did not come, and have not come since."""
        self._trusted: Flags | None = None
        """The last answer of `trusted`, while it holds; `_trusted_rows` are its rows."""
        self._trusted_rows: Rows | None = None
        self._speculative: dict[int, int] = {}
        self._speculative_until: dict[tuple[int, int], float] = {}
        self._speculative_ends: deque[tuple[float, int, int]] = deque()
        self.shows_metrics = False
        """The configuration wants the index's own metrics."""
        self.on_lookup: Callable[[float], None] | None = None
        """Called with the seconds that a lookup took, if `shows_metrics`."""
        self.answers: Counter[str] = Counter()
        """Prompts by what their matches come from."""
        self.admitted = 0
        self.evicted = 0
        self.lookups = 0
        self.lookup_hits = 0
        """Lookups that found a block of the prompt."""
        self.lookup_max_hits = 0
        """Blocks found on the best source, over all lookups."""

    def configure(
        self,
        *,
        block_tokens: int = DEFAULT_BLOCK_TOKENS,
        seed: str = "",
        max_entries: int = MAX_ENTRIES,
        weights: Mapping[str, float] = _NO_WEIGHTS,
    ) -> bool:
        """Set the block size, the keys' seed, the bound on blocks and the tiers' weights.

        Return whether keys made before are void: the caller then has every source begin anew.
        """
        hashed = xxh64_intdigest(seed.encode()) if seed else 0
        changed = (block_tokens, hashed) != (self._default_block, self._seed)
        self._default_block, self._seed = block_tokens, hashed
        self.max_entries = max_entries
        self._weights = dict(weights)
        if changed:
            self.block_tokens = block_tokens
        return changed

    def adopt_block_size(self, tokens: int) -> None:
        """Count in the engines' own blocks if nothing is held yet and they are multiples of the set size."""
        if not self.entries and tokens != self.block_tokens and tokens % self._default_block == 0:
            self.block_tokens = tokens

    # Keys.

    def note_model(self, name: str) -> None:
        """Note a name of the base model."""
        if name and len(self.models) < MAX_MODELS:
            self.models.add(name)

    def note_adapter(self, name: str) -> bool:
        """Note an adapter's name; return False when there are `MAX_ADAPTERS` others."""
        if name not in self.adapters:
            if len(self.adapters) >= MAX_ADAPTERS:
                return False
            self.adapters.add(name)
        return True

    def root(self, adapter: str) -> int:
        """Return what the first block's key under an adapter is chained to; "" is the base model."""
        return xxh64_intdigest(adapter.encode("utf-8", "surrogatepass"), self._seed) & HASH_MASK

    def root_of(self, model: str) -> int | None:
        """Return the same for the model that a request names; None when no event and no topic named it."""
        if model in self.adapters:
            return self.root(model)
        return self.root("") if model in self.models or not self.models else None

    def keys(self, root: int, tokens: bytes, extra: Mapping[int, bytes] = _NO_EXTRA) -> list[int]:
        """Return the keys of a prompt's full blocks, at most `MAX_BLOCKS`.

        `tokens` are ids of `TOKEN_BYTES` bytes each; `extra` says by block what its key depends on beside.
        """
        size = self.block_tokens * TOKEN_BYTES
        key = root
        end = min(len(tokens), MAX_BLOCKS * size) - size
        chain: list[int] = []
        for start in range(0, end + 1, size):
            key = xxh64_intdigest(tokens[start : start + size], key) & HASH_MASK
            if extra:
                more = extra.get(len(chain))
                if more:
                    key = salted(key, more)
            chain.append(key)
        return chain

    # Sources.

    def add_source(self, row: int) -> Slot:
        """Return a new source's slot; the row's server publishes by one source or, with ranks, by several."""
        slot = Slot(self._number(), row)
        self._use(slot)
        self._rows.setdefault(row, []).append(slot)
        return slot

    def remove_source(self, slot: Slot, blocks: Iterable[tuple[str, Blocks]]) -> None:
        """Forget a source and its blocks: (tier, keys by the engine's hashes)."""
        self._retire(slot, blocks)
        rest = [each for each in self._rows.get(slot.row, ()) if each is not slot]
        if rest:
            self._rows[slot.row] = rest
        else:
            self._rows.pop(slot.row, None)
            self.set_known(slot.row, known=False)
            self._expected.pop(slot.row, None)
            self._silent.discard(slot.row)

    def clear_source(self, slot: Slot, blocks: Iterable[tuple[str, Blocks]]) -> None:
        """Drop a source's blocks at once: it goes on under another bit, and `sweep` removes the old ones."""
        self._retire(slot, blocks)
        if len(self._swept) > MAX_SWEPT:
            # Without this a source could take ever more bits, and all bit sets grow, before a turn's end.
            self.sweep(SWEPT_AT_ONCE)
        slot.number = self._number()
        slot.bit = 1 << slot.number
        self._use(slot)

    def _use(self, slot: Slot) -> None:
        self._slots[slot.number] = slot
        self._live |= slot.bit
        if slot.number >= self._row_of.size:
            self._row_of = np.concatenate([self._row_of, np.zeros(slot.number + 1, dtype=np.intp)])
        self._row_of[slot.number] = slot.row

    def set_known(self, row: int, *, known: bool) -> None:
        """Say whether the sources of a row have told all that they hold."""
        self._trusted = None
        if known:
            self._known.add(row)
        else:
            self._known.discard(row)

    def _number(self) -> int:
        if self._free:
            return self._free.pop()
        self._numbers_made += 1
        return self._numbers_made - 1

    def _retire(self, slot: Slot, blocks: Iterable[tuple[str, Blocks]]) -> None:
        self._live &= ~slot.bit
        del self._slots[slot.number]
        held = [(tier, keys, count) for tier, keys in blocks if (count := len(keys))]
        for tier, keys, count in held:
            self._swept.append((self.tiers[tier], _carried(keys), slot.number, count))
        if not held:
            self._free.append(slot.number)

    @property
    def is_sweeping(self) -> bool:
        """Tell whether blocks of cleared sources are left for `sweep`."""
        return bool(self._swept)

    def sweep(self, limit: int) -> bool:
        """Remove up to `limit` blocks of cleared sources; return whether more are left."""
        while self._swept and limit > 0:
            holders, keys, number, blocks = self._swept[0]
            parts, mask = holders.parts, holders.mask
            bit = 1 << number
            done = True
            for key in keys:
                part = parts[key & mask]
                held = part.get(key, 0)
                left = held & ~bit
                if left:
                    part[key] = left
                elif held:
                    del part[key]
                limit -= 1
                if limit <= 0:
                    done = False
                    break
            if done:
                self._swept.popleft()
                self.entries -= blocks
                self.evicted += blocks
                if not self._swept or self._swept[0][2] != number:  # a source's tiers follow each other
                    self._free.append(number)
        return bool(self._swept)

    def tier(self, name: str) -> Holders | None:
        """Return a tier's keys; None when there are `MAX_TIERS` others."""
        held = self.tiers.get(name)
        if held is None and len(self.tiers) < MAX_TIERS:
            held = self.tiers[name] = Shards(TIER_SHARDS)
        return held

    # Lookups.

    def trusted(self, rows: Rows, now: float) -> Flags:
        """Tell of each row whether its sources say what it holds: they have told all, and are not silent.

        Do not change the array.
        """
        if self._expected:
            for row, since in list(self._expected.items()):
                if now - since > SILENT_AFTER_S:
                    del self._expected[row]
                    self._silent.add(row)
                    self._trusted = None
        if self._trusted is None or rows is not self._trusted_rows:
            known, silent = self._known, self._silent
            self._trusted = np.array([row in known and row not in silent for row in rows.tolist()], np.bool_)
            self._trusted_rows = rows
        return self._trusted

    def expect(self, row: int, now: float) -> None:
        """Note that the row's server has computed blocks of which its events must tell."""
        if row in self._known and row not in self._silent:
            self._expected.setdefault(row, now)

    def heard(self, row: int) -> None:
        """Note an event of the row."""
        if self._expected:
            self._expected.pop(row, None)
        if row in self._silent:
            self._silent.discard(row)
            self._trusted = None

    def match(self, chain: Sequence[int], rows: Rows, now: float) -> Floats:
        """Return the weighted number of leading blocks that each row holds, rounded down, in the rows' order.

        A block counts with the weight of the best tier that holds it; of a row's several sources the best
        counts. Prompts on their way count as held on tier `DEFAULT_MEDIUM`.
        """
        self.lookups += 1
        if self._speculative_ends and self._speculative_ends[0][0] <= now:
            self.expire(now)
        by_row = np.zeros(1 + max(int(self._row_of.max(initial=0)), int(rows.max(initial=0))))
        best = 0.0
        if len(self.tiers) == 1 and self._weights.get(DEFAULT_MEDIUM, 1.0) == 1.0:
            # Later runs are longer: of a row's several sources the best is written last.
            for bits, length in self._walk(chain):
                by_row[self._rows_of(bits)] = best = float(length)
        else:
            for number, score in self._walk_tiers(chain):
                row = self._slots[number].row
                by_row[row] = max(by_row[row], score)
                best = max(best, score)
            np.floor(by_row + 1e-9, out=by_row)
        if best:
            self.lookup_hits += 1
            self.lookup_max_hits += int(best + 1e-9)
        return by_row[rows]

    def _rows_of(self, bits: int) -> Rows:
        """Return the row of each slot in the bit set."""
        packed = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
        return self._row_of[np.flatnonzero(np.unpackbits(packed, bitorder="little"))]

    def _walk(self, chain: Sequence[int]) -> list[tuple[int, int]]:
        """Return (bit set of slots, their leading blocks), the fewest first, of the slots that hold any."""
        holders, routed = self.tiers[DEFAULT_MEDIUM], self._speculative
        parts, mask = holders.parts, holders.mask
        found: list[tuple[int, int]] = []
        alive, length = self._live, 0
        for key in chain:
            held = parts[key & mask].get(key, 0)
            if routed:
                held |= routed.get(key, 0)
            still = held & alive
            if still != alive:
                if length:
                    found.append((alive & ~still, length))
                alive = still
                if not alive:
                    return found
            length += 1
        if length and alive:
            found.append((alive, length))
        return found

    def _walk_tiers(self, chain: Sequence[int]) -> list[tuple[int, float]]:
        """Return (slot, weighted leading blocks); work is done for the slots whose tier changes only."""
        tiers = sorted(
            ((self._weights.get(name, 1.0), holders) for name, holders in self.tiers.items()),
            key=lambda each: -each[0],
        )
        gpu, routed = self.tiers[DEFAULT_MEDIUM], self._speculative
        before = [0] * len(tiers)
        scores: dict[int, float] = {}
        alive, length = self._live, 0
        for key in chain:
            rest = alive
            now_held = []
            for _weight, holders in tiers:
                held = holders.get(key) or 0
                if routed and holders is gpu:
                    held |= routed.get(key, 0)
                held &= rest
                rest &= ~held
                now_held.append(held)
            for at, (weight, _holders) in enumerate(tiers):
                changed = before[at] ^ now_held[at]
                if changed:
                    for number in _numbers(changed & before[at]):
                        scores[number] = scores.get(number, 0.0) + weight * length
                    for number in _numbers(changed & now_held[at]):
                        scores[number] = scores.get(number, 0.0) - weight * length
            before = now_held
            alive &= ~rest
            if not alive:
                break
            length += 1
        for at, (weight, _holders) in enumerate(tiers):
            for number in _numbers(before[at]):
                scores[number] = scores.get(number, 0.0) + weight * length
        return list(scores.items())

    # Prompts on their way.

    def speculate(self, chain: Sequence[int], row: int, until: float) -> None:
        """Count the blocks as held by the row until then; at most `MAX_SPECULATIVE` blocks at a time."""
        slots = self._rows.get(row)
        if not slots:
            return
        bit, number = slots[0].bit, slots[0].number
        routed, ends = self._speculative, self._speculative_until
        for key in chain:
            if (key, number) not in ends:
                if len(ends) >= MAX_SPECULATIVE:
                    break
                routed[key] = routed.get(key, 0) | bit
                self._speculative_ends.append((until, key, number))
            ends[key, number] = until

    def expire(self, now: float) -> None:
        """Drop the blocks of prompts on their way whose time is over."""
        queue, ends, routed = self._speculative_ends, self._speculative_until, self._speculative
        while queue and queue[0][0] <= now:
            _until, key, number = queue.popleft()
            last = ends[key, number]
            if last > now:  # routed there again meanwhile
                queue.append((last, key, number))
                continue
            del ends[key, number]
            left = routed[key] & ~(1 << number)
            if left:
                routed[key] = left
            else:
                del routed[key]

    def held(self, slot: Slot, tier: str = DEFAULT_MEDIUM) -> set[int]:
        """Return the keys that a source holds. Too slow for the hot path."""
        holders = self.tiers.get(tier)
        return {key for key, bits in holders.items() if bits & slot.bit} if holders else set()


def salted(key: int, extra: bytes) -> int:
    """Return the key of a block that depends on more than its tokens."""
    return xxh64_intdigest(extra, key) & HASH_MASK


def _carried(blocks: Blocks) -> Iterator[int]:
    """Yield the keys that a source's blocks carry, and free the blocks on the way."""
    for value in blocks.take_values():
        if isinstance(value, int):
            yield value
        else:
            yield from value.carried


def _numbers(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
