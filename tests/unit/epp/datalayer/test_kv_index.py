"""Which server holds how much of a prompt, by its events."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from endpoint_picker.datalayer import kv_index
from endpoint_picker.datalayer.kv_blocks import KvCounts, SourceBlocks
from endpoint_picker.datalayer.kv_events import Cleared, Removed, Stored
from endpoint_picker.datalayer.kv_index import KvIndex

ROWS = np.array([0, 1, 2])


def ids(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


def stored(hashes: Sequence[int], tokens: bytes, parent: int | None = None, **more: Any) -> Stored:
    fields: dict[str, Any] = {
        "hashes": list(hashes), "parent": parent, "tokens": tokens, "block_size": 4, "medium": "gpu",
        "adapter": "", "unnamed_adapter": False, "extra": None, "group": None, "kind": "",
    }  # fmt: skip
    return Stored(**{**fields, **more})


class Fixture:
    """Three servers' sources over one index of blocks of 4 tokens."""

    def __init__(self, most: int = 1000) -> None:
        self.index = KvIndex()
        self.index.configure(block_tokens=4, weights={"gpu": 1.0, "cpu": 0.8})
        self.counts = KvCounts()
        self.sources = [
            SourceBlocks(self.index, self.index.add_source(row), self.counts, most) for row in range(3)
        ]

    def match(self, tokens: bytes, model: str = "", extra: Any = None, now: float = 0.0) -> list[float]:
        root = self.index.root_of(model)
        assert root is not None
        found: list[float] = self.index.match(self.index.keys(root, tokens, extra or {}), ROWS, now).tolist()
        return found


A, B, C = ids(1, 2, 3, 4), ids(5, 6, 7, 8), ids(9, 10, 11, 12)


def test_each_server_counts_up_to_its_first_missing_block() -> None:
    pool = Fixture()
    pool.sources[0].apply(stored([1, 2, 3], A + B + C))
    pool.sources[1].apply(stored([91], A))  # another engine's hashes are its own
    pool.sources[1].apply(stored([93], C, parent=91))
    assert pool.match(A + B + C) == [3, 1, 0]
    assert pool.match(A + C) == [1, 2, 0]
    assert pool.match(B) == [0, 0, 0]
    assert (pool.index.lookups, pool.index.lookup_hits, pool.index.lookup_max_hits) == (3, 2, 5)


def test_removals_and_clears() -> None:
    pool = Fixture()
    for source in pool.sources[:2]:
        source.apply(stored([1, 2], A + B))
    pool.sources[0].apply(Removed([2, 77], "gpu", None))
    assert pool.match(A + B) == [1, 2, 0]
    pool.sources[1].apply(Cleared())
    assert pool.match(A + B) == [1, 0, 0]
    assert pool.index.entries == 3  # the cleared ones go in portions
    assert not pool.index.sweep(10)
    assert (pool.index.entries, pool.counts.forwarded) == (1, 2)
    pool.sources[1].apply(stored([5], A))
    assert pool.match(A + B) == [1, 1, 0]


def test_a_block_stored_twice_is_held_until_it_is_removed_twice() -> None:
    pool = Fixture()
    source = pool.sources[0]
    source.apply(stored([1], A))
    source.apply(stored([1], A))
    source.apply(Removed([1], "gpu", None))
    assert pool.match(A) == [1, 0, 0]
    source.apply(Removed([1], "gpu", None))
    assert pool.match(A) == [0, 0, 0]
    assert (pool.counts.suppressed, pool.counts.forwarded, pool.index.entries) == (1, 1, 0)


def test_a_block_counts_with_the_weight_of_its_best_tier() -> None:
    pool = Fixture()
    source = pool.sources[0]
    source.apply(stored([1, 2, 3], A + B + C))
    source.apply(stored([2, 3], b"", medium="cpu"))
    source.apply(Removed([2, 3], "gpu", None))
    pool.sources[1].apply(stored([1], A, medium="disk"))  # a tier without a weight counts whole
    pool.sources[2].apply(stored([1, 2, 3], A + B + C, medium="cpu"))
    assert pool.match(A + B + C) == [2, 1, 2]  # 1 + 0.8 + 0.8, 1, 3 * 0.8; rounded down
    source.apply(Removed([3], "cpu", None))
    assert pool.match(A + B + C) == [1, 1, 2]


def test_adapters_salts_and_images_are_apart() -> None:
    pool = Fixture()
    pool.index.note_model("base")
    source = pool.sources[0]
    source.apply(stored([1], A))
    source.apply(stored([2], B, adapter="tuned"))
    source.apply(stored([3], C, extra=[b"4:salt"]))
    assert pool.match(A, "base") == [1, 0, 0]
    assert pool.match(B, "base") == [0, 0, 0]
    assert pool.match(B, "tuned") == [1, 0, 0]
    assert pool.match(C, "base") == [0, 0, 0]
    assert pool.match(C, "base", {0: b"4:salt"}) == [1, 0, 0]
    assert pool.match(C, "base", {0: b"5:salt2"}) == [0, 0, 0]
    assert pool.index.root_of("never named") is None
    source.apply(stored([4], A, unnamed_adapter=True))
    assert pool.counts.stores_skipped["unspecified", "adapter"] == 1


@pytest.mark.parametrize(
    ("engine_block", "hashes"),
    [pytest.param(8, [1, 2], id="longer"), pytest.param(2, range(1, 9), id="shorter")],
)
def test_an_engines_blocks_may_be_longer_or_shorter_than_the_indexs(engine_block: int, hashes: Any) -> None:
    pool = Fixture()
    pool.sources[1].apply(stored([1], A))  # so that the index stays at 4 tokens
    tokens = ids(*range(1, 17))
    for at, name in enumerate(hashes):
        part = tokens[at * engine_block * 4 : (at + 1) * engine_block * 4]
        parent = hashes[at - 1] if at else None
        pool.sources[0].apply(stored([name], part, parent, block_size=engine_block))
    assert pool.match(tokens) == [4, 1, 0]
    pool.sources[0].apply(Removed([hashes[-1]], "gpu", None))
    assert pool.match(tokens)[0] == (2 if engine_block == 8 else 3)
    pool.sources[0].apply(Removed(list(hashes[:-1]), "gpu", None))
    assert (pool.match(tokens), pool.index.entries) == ([0, 1, 0], 1)


def test_the_index_counts_in_the_engines_own_blocks_where_they_are_multiples() -> None:
    pool = Fixture()
    pool.sources[0].apply(stored([1], ids(*range(8)), block_size=8))
    assert pool.index.block_tokens == 8
    assert dict(pool.index.tiers["gpu"].items()).keys() == set(
        pool.index.keys(pool.index.root(""), ids(*range(8)))
    )


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored([5], B, parent=404), ("unspecified", "parent")),
        (stored([5], B + C), ("unspecified", "span")),
        (stored([5], b""), ("unspecified", "unknown")),
        (stored([5], B, group=1, kind="sliding_window"), ("sliding_window", "kind")),
        (stored([5], B, group=1, kind="made up"), ("other", "kind")),
    ],
)
def test_what_cannot_be_placed_is_left_out_and_counted(event: Stored, reason: tuple[str, str]) -> None:
    pool = Fixture()
    pool.sources[0].apply(event)
    assert pool.counts.stores_skipped == {reason: 1}
    assert pool.index.entries == 0


def test_groups_of_layers_that_do_not_hold_whole_prefixes_are_left_out() -> None:
    pool = Fixture()
    source = pool.sources[0]
    source.apply(stored([1, 2], A + B, group=0, kind="full_attention"))
    source.apply(stored([1, 2], A + B, group=1, kind="sliding_window"))
    source.apply(Removed([1], "gpu", 1))
    assert pool.match(A + B) == [2, 0, 0]
    assert pool.counts.removals_skipped == {("sliding_window", "kind"): 1}


def test_a_server_and_all_together_are_bounded_and_keep_the_beginnings() -> None:
    pool = Fixture(most=2)
    pool.index.max_entries = 3
    pool.sources[0].apply(stored([1, 2, 3], A + B + C))
    pool.sources[1].apply(stored([1, 2], A + B))
    assert (pool.match(A + B + C), pool.index.entries) == ([2, 1, 0], 3)
    assert pool.counts.stores_skipped == {("unspecified", "capacity"): 2}
    pool.sources[0].apply(Removed([2], "gpu", None))
    pool.sources[0].apply(stored([3], C, parent=1))
    assert pool.match(A + C) == [2, 1, 0]


def test_a_prompt_on_its_way_counts_until_its_time_is_over() -> None:
    pool = Fixture()
    chain = pool.index.keys(pool.index.root(""), A + B)
    pool.index.speculate(chain, 1, until=10.0)
    assert pool.match(A + B, now=9.0) == [0, 2, 0]
    pool.index.speculate(chain, 1, until=12.0)
    assert pool.match(A + B, now=11.0) == [0, 2, 0]
    assert pool.match(A + B, now=12.0) == [0, 0, 0]
    assert not pool.index._speculative
    assert not pool.index._speculative_until


def test_prompts_on_their_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_index, "MAX_SPECULATIVE", 3)
    pool = Fixture()
    for _ in range(4):
        pool.index.speculate([1, 2, 3, 4, 5], 1, until=10.0)
    assert len(pool.index._speculative_ends) == 3


def test_of_the_ranks_behind_one_port_the_best_counts() -> None:
    pool = Fixture()
    second = SourceBlocks(pool.index, pool.index.add_source(0), pool.counts, 10)
    pool.sources[0].apply(stored([1], A))
    second.apply(stored([2], B))
    second.apply(stored([1], A))
    second.apply(stored([3], B, parent=1))
    assert pool.match(A + B) == [2, 0, 0]
    second.close()
    assert pool.match(A + B) == [1, 0, 0]


def test_a_lookup_does_work_by_blocks_and_not_by_servers() -> None:
    index, counts = KvIndex(), KvCounts()
    index.configure(block_tokens=4)
    sources = [SourceBlocks(index, index.add_source(row), counts, 100) for row in range(500)]
    for source in sources:
        source.apply(stored([1, 2], A + B))

    class Counting(dict[int, int]):
        reads = 0

        @override
        def get(self, key: int, default: Any = None) -> Any:
            self.reads += 1
            return super().get(key, default)

    counting = Counting(index.tiers["gpu"].items())
    index.tiers["gpu"].parts[:] = [counting] * len(index.tiers["gpu"].parts)
    matched = index.match(index.keys(index.root(""), A + B + C), np.arange(500), 0.0)
    assert (counting.reads, matched.tolist()) == (3, [2.0] * 500)


def test_memory_of_odd_block_sizes_counts_as_blocks_and_comes_back() -> None:
    pool = Fixture(most=50)
    source = pool.sources[0]
    source.apply(stored([2], A))
    # Of one block's 400 tokens the index has 100 blocks: it counts as so many, and nothing else has room.
    source.apply(stored([1], bytes(1600), block_size=400))
    source.apply(stored([3], B))
    assert (pool.index.entries, len(source)) == (101, 2)
    source.apply(Removed([1], "gpu", None))
    assert (pool.index.entries, len(pool.index.tiers["gpu"])) == (1, 1)
    source.apply(stored([3], B))
    assert pool.index.entries == 2


def test_blocks_that_wait_for_a_long_one_of_the_index_count_with_their_tokens() -> None:
    index = KvIndex()
    source = SourceBlocks(index, index.add_source(0), KvCounts(), 1000)
    source.apply(stored([1], bytes(4 * 4096), block_size=4096))
    assert index.block_tokens == 4096
    source.apply(stored(range(2, 1002), bytes(4000), block_size=1))
    # 999 more blocks would fit; the k-th keeps 4k bytes, and those beyond 128 count: fewer than a half fit.
    assert len(source) < 500
    assert index.entries <= 1000 + 32
    source.clear()
    index.sweep(10_000)
    assert index.entries == 0


def test_a_source_that_is_cleared_over_and_over_takes_few_bits() -> None:
    pool = Fixture()
    for _ in range(5000):
        pool.sources[0].apply(stored([1], A))
        pool.sources[0].apply(Cleared())
    assert pool.sources[0].slot.number < 300
    pool.index.sweep(10_000)
    assert (pool.index.entries, len(pool.index.tiers["gpu"])) == (0, 0)
