"""The blocks of one source: applies its events to the index. Pure.

An engine names its blocks by hashes of its own, which another engine does not share. A source's dicts lead
from such a hash to the key of the same tokens. A block stored after a parent continues the chain of the
parent's key; one whose parent is not known is left out, because its key would be wrong.

Engine blocks need not have the index's size: a longer one carries several keys, a shorter one none until the
last of a whole block of the index is stored. An engine may store a block under one hash twice (two requests
computed it at once); it is held until it was removed as often.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from xxhash import xxh64_intdigest

from endpoint_picker.datalayer.kv_events import (
    HASH_MASK,
    TOKEN_BYTES,
    Cleared,
    Event,
    Removed,
    Stored,
)
from endpoint_picker.datalayer.kv_index import (
    SOURCE_SHARDS,
    Blocks,
    Holders,
    KvIndex,
    Place,
    Slot,
    beyond_one,
    salted,
)
from endpoint_picker.datalayer.kv_shards import Shards

#: Groups of layers whose blocks reach back to the beginning of the prompt. A block of another group (a
#: sliding window, a state-space layer) does not mean that the blocks before it are there.
WHOLE_PREFIX: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
#: Kinds that are labels of metrics as they are; events name others, which strangers could make up.
_LABELS: Final = WHOLE_PREFIX | {
    "sliding_window", "sliding_window_mla", "chunked_local_attention", "mamba", "cross_attention",
}  # fmt: skip
#: Most groups of layers of a source.
MAX_GROUPS: Final = 64


class KvCounts:
    """What happened to the events of all sources."""

    __slots__ = ("forwarded", "removals_skipped", "stores_skipped", "suppressed")

    def __init__(self) -> None:
        self.stores_skipped: Counter[tuple[str, str]] = Counter()
        """(kind of cache, reason) of stores that were left out; a store over the bound counts once."""
        self.removals_skipped: Counter[tuple[str, str]] = Counter()
        self.suppressed = 0
        """Removals of blocks that were stored more than once, and stay."""
        self.forwarded = 0
        """Removals of blocks, known or not, that did not stay."""


class SourceBlocks:
    """What one source holds."""

    __slots__ = ("_again", "_beyond", "_blocks", "_counts", "_groups", "_index", "_most", "_sizes", "slot")

    def __init__(self, index: KvIndex, slot: Slot, counts: KvCounts, most: int) -> None:
        self._index = index
        self._counts = counts
        self._most = most
        self._blocks: dict[str, Blocks] = {}
        """By tier."""
        self._sizes: dict[str, int] = {}
        """Tier to its blocks' number."""
        self._again: dict[str, dict[int, int]] = {}
        """Tier to engine hash to how often it was stored beyond once."""
        self._beyond = 0
        """Sum of `beyond_one` of all blocks."""
        self._groups: dict[int, str] = {}
        """Groups of layers whose blocks are not indexed, each with its kind."""
        self.slot = slot

    def __len__(self) -> int:
        return sum(self._sizes.values())

    def apply(self, event: Event) -> None:
        """Change the index as the event says."""
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            self._remove(event)
        elif isinstance(event, Cleared):
            self.clear()

    def clear(self) -> None:
        """Drop all blocks."""
        if self._blocks:
            self._index.clear_source(self.slot, self._blocks.items())
        self._forget()

    def close(self) -> None:
        """Drop all blocks and leave the index."""
        self._index.remove_source(self.slot, self._blocks.items())
        self._forget()

    def _forget(self) -> None:
        self._index.entries -= self._beyond
        self._beyond = 0
        self._blocks = {}
        self._sizes = {}
        self._again = {}
        self._groups = {}

    def _skip(self, event: Stored, reason: str) -> None:
        self._counts.stores_skipped[_label(event.kind), reason] += 1

    def _store(self, event: Stored) -> None:
        if event.group is not None and not self._is_indexed(event):
            return
        holders = self._index.tier(event.medium)
        if holders is None:
            self._skip(event, "tier")
            return
        blocks = self._blocks.get(event.medium)
        if blocks is None:
            blocks = self._blocks[event.medium] = Shards(SOURCE_SHARDS)
            self._sizes[event.medium] = 0
        if not event.tokens:
            self._add_tier(event, blocks, holders)
            return
        count = len(event.hashes)
        if len(event.tokens) != count * event.block_size * TOKEN_BYTES:
            self._skip(event, "span")
            return
        if event.unnamed_adapter or (event.adapter and not self._index.note_adapter(event.adapter)):
            self._skip(event, "adapter")
            return
        index = self._index
        place: int | Place | None
        if event.parent is None:
            place = index.root(event.adapter)
        else:
            place = self._place(event.parent)
            if place is None:
                self._skip(event, "parent")
                return
        index.adopt_block_size(event.block_size)
        room = min(self._most - self._beyond - self._sizes[event.medium], index.max_entries - index.entries)
        hashes: Sequence[int] = event.hashes
        if count > room:
            # What is known stays: the first blocks of a chain are worth more than the rest of it.
            self._skip(event, "capacity")
            hashes = hashes[: max(0, room)]
        if event.block_size == index.block_tokens and isinstance(place, int):
            added = self._add_equal(event, hashes, place, blocks, holders)
        else:
            added = self._add_unequal(event, hashes, place, blocks, holders, room)
        self._sizes[event.medium] += added
        index.entries += added
        index.admitted += added

    def _add_equal(
        self, event: Stored, hashes: Sequence[int], key: int, blocks: Blocks, holders: Holders
    ) -> int:
        """Add blocks of the index's own size; return how many are new."""
        named, named_mask = blocks.parts, blocks.mask
        parts, mask = holders.parts, holders.mask
        bit, size, tokens = self.slot.bit, event.block_size * TOKEN_BYTES, event.tokens
        start = again = 0
        for at, name in enumerate(hashes):
            key = xxh64_intdigest(tokens[start : start + size], key) & HASH_MASK
            start += size
            if event.extra is not None and event.extra[at]:
                key = salted(key, event.extra[at])
            known = named[name & named_mask]
            if name in known:
                self._note_again(event.medium, name)
                again += 1
                continue
            known[name] = key
            part = parts[key & mask]
            held = part.get(key)
            # The slot's own number where one source holds the block: it is stored once for all its blocks.
            part[key] = bit if held is None else held | bit
        return len(hashes) - again

    def _add_unequal(
        self,
        event: Stored,
        hashes: Sequence[int],
        place: int | Place,
        blocks: Blocks,
        holders: Holders,
        room: int,
    ) -> int:
        """Add blocks of another size than the index's, as long as there is room; return how many are new."""
        key, tail = (place, b"") if isinstance(place, int) else (place.end, place.tail)
        bit, size, tokens = self.slot.bit, event.block_size * TOKEN_BYTES, event.tokens
        whole = self._index.block_tokens * TOKEN_BYTES
        added = 0
        for at, name in enumerate(hashes):
            if room <= 0:
                self._skip(event, "capacity")
                return added
            tail += tokens[at * size : (at + 1) * size]
            extra = b"" if event.extra is None else event.extra[at]
            carried: list[int] = []
            start = 0
            while len(tail) - start >= whole:
                key = xxh64_intdigest(tail[start : start + whole], key) & HASH_MASK
                if extra:
                    key = salted(key, extra)
                carried.append(key)
                start += whole
            tail = tail[start:]
            known = blocks.parts[name & blocks.mask]
            if name in known:
                self._note_again(event.medium, name)
                continue
            alone = len(carried) == 1 and not tail
            made = known[name] = key if alone else Place(key, tail, tuple(carried))
            added += 1
            room -= 1 + self._count_beyond(made)
            for each in carried:
                _hold(holders, each, bit)
        return added

    def _add_tier(self, event: Stored, blocks: Blocks, holders: Holders) -> None:
        """Add a tier to blocks that are known from another one."""
        index, bit = self._index, self.slot.bit
        for name in event.hashes:
            place = self._place(name)
            if place is None:
                self._skip(event, "unknown")
            elif blocks.get(name) is not None:
                self._note_again(event.medium, name)
            elif self._sizes[event.medium] >= self._most or index.entries >= index.max_entries:
                self._skip(event, "capacity")
            else:
                blocks.parts[name & blocks.mask][name] = place
                self._sizes[event.medium] += 1
                index.entries += 1
                index.admitted += 1
                self._count_beyond(place)
                for key in (place,) if isinstance(place, int) else place.carried:
                    _hold(holders, key, bit)

    def _count_beyond(self, place: int | Place) -> int:
        more = beyond_one(place)
        self._beyond += more
        self._index.entries += more
        return more

    def _place(self, name: int) -> int | Place | None:
        """Return where a block ends in the chain of keys, whatever tier holds it."""
        for blocks in self._blocks.values():
            place = blocks.get(name)
            if place is not None:
                return place
        return None

    def _note_again(self, tier: str, name: int) -> None:
        again = self._again.setdefault(tier, {})
        again[name] = again.get(name, 0) + 1

    def _is_indexed(self, event: Stored) -> bool:
        if not event.kind or event.kind in WHOLE_PREFIX:
            return True
        if event.group is not None and len(self._groups) < MAX_GROUPS:
            self._groups[event.group] = event.kind
        self._skip(event, "kind")
        return False

    def _remove(self, event: Removed) -> None:
        counts, index = self._counts, self._index
        if event.group is not None and event.group in self._groups:
            counts.removals_skipped[_label(self._groups[event.group]), "kind"] += 1
            return
        blocks = self._blocks.get(event.medium)
        if blocks is None:
            counts.forwarded += len(event.hashes)
            return
        holders, again = index.tiers[event.medium], self._again.get(event.medium)
        parts, mask = holders.parts, holders.mask
        bit, removed, suppressed = self.slot.bit, 0, 0
        for name in event.hashes:
            if again and name in again:
                suppressed += 1
                again[name] -= 1
                if not again[name]:
                    del again[name]
                continue
            place = blocks.parts[name & blocks.mask].pop(name, None)
            if place is None:
                continue
            removed += 1
            if not isinstance(place, int):
                more = beyond_one(place)
                self._beyond -= more
                index.entries -= more
            for key in (place,) if isinstance(place, int) else place.carried:
                part = parts[key & mask]
                held = part.get(key, 0)
                if held == bit:
                    del part[key]
                elif held:
                    part[key] = held & ~bit
        counts.suppressed += suppressed
        counts.forwarded += len(event.hashes) - suppressed
        self._sizes[event.medium] -= removed
        index.entries -= removed
        index.evicted += removed


def _hold(holders: Holders, key: int, bit: int) -> None:
    """Note that a source holds a key."""
    part = holders.parts[key & holders.mask]
    part[key] = part.get(key, 0) | bit


def _label(kind: str) -> str:
    return kind if kind in _LABELS else "other" if kind else "unspecified"
