"""The KV cache as counted blocks, with a prefix cache over full ones. Pure: no I/O, clock or randomness.

A block is free (holds nothing), private (one sequence fills it), shared (full, named by its hash, used by one
sequence or more) or idle (full and named, used by no sequence; evicted when no block is free, least recently
used first). Blocks have no other identity, so the state is counts and hashes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from model_server_sim.request import Request


class Stored(NamedTuple):
    """Blocks of a request got their names and can be shared from now on."""

    request: Request
    first: int
    """Position of the first in `request.block_hashes`."""
    blocks: int
    """At least 1."""


class Removed(NamedTuple):
    """A named block was evicted."""

    name: int


class Cleared(NamedTuple):
    """The prefix cache was reset."""


Change = Stored | Removed | Cleared


class Holding:
    """The blocks of one sequence: its full, named ones in order, then a number of private ones."""

    __slots__ = ("private", "shared")

    def __init__(self) -> None:
        self.shared: list[int] = []
        self.private = 0


class BlockPool:
    """All KV blocks of an engine. Costs are O(blocks concerned)."""

    __slots__ = ("_idle", "_uses", "free", "journal", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._uses: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.journal: list[Change] | None = None
        """What happened to named blocks, in order; None: not noted. The caller empties it."""

    @property
    def available(self) -> int:
        """Return how many blocks can be handed out now, evicting idle ones."""
        return self.free + len(self._idle)

    @property
    def used(self) -> int:
        """Return how many blocks sequences hold; a shared block counts once."""
        return self.total - self.available

    @property
    def shared(self) -> int:
        """Return how many named blocks are in use."""
        return len(self._uses)

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """Return how many leading hashes are cached, at most `limit`."""
        uses, idle = self._uses, self._idle
        count = 0
        for name in hashes[:limit]:
            if name not in uses and name not in idle:
                break
            count += 1
        return count

    def admit(self, holding: Holding, hits: Sequence[int], blocks: int, whole: int) -> bool:
        """Give an empty holding the cached `hits` and private blocks up to `blocks`.

        False, with no change, when fewer than `whole` blocks in all could be had.
        """
        idle_hits = len({name for name in hits if name in self._idle})
        if whole - len(hits) > self.available - idle_hits:
            return False
        self._use(hits)
        holding.shared.extend(hits)
        return self.grow(holding, blocks)

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Enlarge the holding to `blocks` in all; False changes nothing."""
        need = blocks - len(holding.shared) - holding.private
        if need <= 0:
            return True
        if need > self.available:
            return False
        self.take(need)
        holding.private += need
        return True

    def take(self, need: int) -> None:
        """Hand out `need` private blocks, at most `available`; the caller keeps count of who holds them."""
        for _ in range(need - self.free):
            name, _ = self._idle.popitem(last=False)
            if self.journal is not None:
                self.journal.append(Removed(name))
        self.free = max(0, self.free - need)

    def commit(self, holding: Holding, request: Request, full: int) -> None:
        """Name the holding's blocks that are now full, so that later prompts can share them.

        A block whose name exists already (two sequences computed the same prefix at once) is freed.
        """
        uses, idle, shared = self._uses, self._idle, holding.shared
        names = request.block_hashes[len(shared) : full]
        if self.journal is not None:
            self._note(self.journal, request, len(shared), names)
        for name in names:
            count = uses.get(name, 0)
            if count or name in idle:
                self.free += 1
                idle.pop(name, None)
            uses[name] = count + 1
        holding.private -= len(names)
        shared.extend(names)

    def release(self, holding: Holding) -> None:
        """Take back all blocks of a holding. Named ones turn idle; a prefix is evicted from its end."""
        self.free += holding.private
        holding.private = 0
        uses, idle = self._uses, self._idle
        for name in reversed(holding.shared):
            left = uses[name] - 1
            if left:
                uses[name] = left
            else:
                del uses[name]
                idle[name] = None
        holding.shared.clear()

    def clear(self) -> bool:
        """Forget all idle blocks, as a reset of the prefix cache does; False: blocks in use stay named."""
        if self.journal is not None:
            self.journal.extend([Removed(name) for name in self._idle] if self._uses else [Cleared()])
        self.free += len(self._idle)
        self._idle.clear()
        return not self._uses

    def _note(self, journal: list[Change], request: Request, first: int, names: Sequence[int]) -> None:
        """Note the names that are new, a change for each run of them."""
        for position, name in enumerate(names, first):
            if name in self._uses or name in self._idle:
                continue
            last = journal[-1] if journal else None
            if isinstance(last, Stored) and last.request is request and last.first + last.blocks == position:
                journal[-1] = last._replace(blocks=last.blocks + 1)
            else:
                journal.append(Stored(request, position, 1))

    def _use(self, names: Sequence[int]) -> None:
        uses, idle = self._uses, self._idle
        for name in names:
            idle.pop(name, None)
            uses[name] = uses.get(name, 0) + 1
