"""A publisher that speaks vLLM's format, over an engine's cache that is only sets: the truth of tests and
benches.

It keeps the last messages for replays and can be started again. It has no sockets; `KvPublisher` of the
simulator has them.
"""

import random
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

_encode = msgspec.msgpack.Encoder().encode


class Publisher:
    """One engine with room for `capacity` blocks of `block_size` tokens; the least recently stored goes
    first.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        capacity: int,
        block_size: int = 16,
        kept: int = 10_000,
        maps: bool = False,
    ) -> None:
        self._rng = rng
        self._capacity = capacity
        self.block_size = block_size
        self._kept = kept
        self._maps = maps
        """Events are maps, as newer versions send them."""
        self._clock = 1_000.0
        self.blocks: OrderedDict[int, tuple[int | None, tuple[int, ...]]] = OrderedDict()
        """Hash to (parent, token ids of the block)."""
        self.sent: OrderedDict[int, bytes] = OrderedDict()
        self.number = 0

    def restart(self) -> None:
        """Lose all blocks and all kept messages, and number from 0 again."""
        self.blocks.clear()
        self.sent.clear()
        self.number = 0

    def step(self, blocks: int) -> tuple[int, bytes]:
        """Store up to `blocks` new blocks after one that is held, or at the beginning; return the message."""
        events: list[object] = []
        room = self._capacity - blocks
        removed = []
        while len(self.blocks) > max(0, room):
            removed.append(self.blocks.popitem(last=False)[0])
        if removed:
            events.append(self._event("BlockRemoved", block_hashes=removed, medium="GPU"))
        parent = None
        if self.blocks and self._rng.random() < 0.7:
            parent = (
                self._rng.choice(tuple(self.blocks))
                if len(self.blocks) < 200
                else next(reversed(self.blocks))
            )
        names = [self._rng.getrandbits(64) for _ in range(blocks)]
        tokens = [self._rng.randrange(150_000) for _ in range(blocks * self.block_size)]
        before = parent
        for at, name in enumerate(names):
            own = tuple(tokens[at * self.block_size : (at + 1) * self.block_size])
            self.blocks[name] = (before, own)
            before = name
        events.append(
            self._event(
                "BlockStored",
                block_hashes=names,
                parent_block_hash=parent,
                token_ids=tokens,
                block_size=self.block_size,
                lora_id=None,
                medium="GPU",
                lora_name=None,
            )
        )
        return self._message(events)

    def clear(self) -> tuple[int, bytes]:
        """Drop all blocks; return the message."""
        self.blocks.clear()
        return self._message([self._event("AllBlocksCleared")])

    def replay(self, first: int) -> list[tuple[int, bytes]]:
        """Return the kept messages from a number on."""
        return [(number, payload) for number, payload in self.sent.items() if number >= first]

    def chains(self) -> list[list[int]]:
        """Return the token ids from the beginning of the prompt to the end of each block held.

        Of a block whose ancestors were removed there is no chain.
        """
        found = []
        for name in self.blocks:
            ids: list[int] = []
            at: int | None = name
            while at is not None:
                if at not in self.blocks:
                    break
                parent, own = self.blocks[at]
                ids[:0] = own
                at = parent
            else:
                found.append(ids)
        return found

    def _event(self, tag: str, **fields: object) -> object:
        return {"type": tag, **fields} if self._maps else [tag, *fields.values()]

    def _message(self, events: Sequence[object]) -> tuple[int, bytes]:
        self._clock += 0.01
        payload = _encode([self._clock, events, 0])
        number, self.number = self.number, self.number + 1
        self.sent[number] = payload
        if len(self.sent) > self._kept:
            self.sent.popitem(last=False)
        return number, payload
