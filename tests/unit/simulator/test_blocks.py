"""Counts and names of KV blocks, held against a count of every single use."""

import random

import pytest

from model_server_sim.blocks import BlockPool, Holding
from model_server_sim.request import Request

TOTAL = 60


class Ledger:
    """What the pool should hold: a use at a time, in plain lists."""

    def __init__(self) -> None:
        self.uses: dict[int, int] = {}
        self.idle: list[int] = []

    def use(self, names: list[int]) -> None:
        for name in names:
            if name in self.idle:
                self.idle.remove(name)
            self.uses[name] = self.uses.get(name, 0) + 1

    def release(self, names: list[int]) -> None:
        for name in reversed(names):
            self.uses[name] -= 1
            if not self.uses[name]:
                del self.uses[name]
                self.idle.append(name)


def names_of(rng: random.Random, twice: bool) -> tuple[int, ...]:
    """Return a shared beginning and an end of its own; `twice` repeats a name, as equal hashes would."""
    group, own = rng.randrange(3), rng.randrange(1000, 1040)
    names = [100 * group + each for each in range(rng.randrange(6))]
    names += [10 * own + each for each in range(rng.randrange(5))]
    if twice and names:
        names.append(rng.choice(names))
    return tuple(names)


@pytest.mark.parametrize("twice", [False, True], ids=["distinct", "equal-hashes"])
@pytest.mark.parametrize("seed", range(20))
def test_shared_own_and_idle_blocks_are_counted_each(seed: int, twice: bool) -> None:
    rng = random.Random(seed)
    pool, right = BlockPool(TOTAL), Ledger()
    held: list[Holding] = []
    private = 0
    for number in range(300):
        if held and (rng.random() < 0.5 or len(held) > 6):
            holding = held.pop(rng.randrange(len(held)))
            right.release(holding.shared)
            private -= holding.private
            pool.release(holding)
        else:
            names = names_of(rng, twice)
            request = Request(request_id=str(number), prompt_tokens=1, output_tokens=1, block_hashes=names)
            holding = Holding()
            hits = names[: pool.match(names, len(names))]
            cached = {*right.uses, *right.idle}
            assert len(hits) == next((at for at, name in enumerate(names) if name not in cached), len(names))
            assert pool.admit(holding, hits, len(names) + 1, len(names) + 1)
            right.use(list(hits))
            evicted = len(right.idle) - (pool.available - pool.free)
            assert evicted >= 0
            del right.idle[:evicted]
            pool.commit(holding, request, len(names))
            right.use(list(names[len(hits) :]))
            private += holding.private
            held.append(holding)
        assert pool.shared == len(right.uses)
        assert pool.used == len(right.uses) + private
        assert pool.available - pool.free == len(right.idle)
    for holding in held:
        pool.release(holding)
    assert pool.used == 0
