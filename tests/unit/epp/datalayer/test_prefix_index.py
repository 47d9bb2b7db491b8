"""The prefix index against a naive one, its bounds, and what it evicts first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint_picker.datalayer.prefix_index import MAX_CAPACITY, PrefixIndex, bits_of
from endpoint_picker.datalayer.table import Endpoint, EndpointTable

BLOCK = 64 * 4


def table_of(count: int) -> EndpointTable:
    table = EndpointTable()
    table.replace(Endpoint(f"p{n}", "default", f"10.0.{n // 250}.{n % 250}", 8000) for n in range(count))
    return table


def prompt_of(letters: str) -> bytes:
    """Return one full block for every letter."""
    return b"".join(letter.encode() * BLOCK for letter in letters)


def matched(index: PrefixIndex, table: EndpointTable, letters: str, model: str = "m") -> list[int]:
    found = index.match(index.hashes(model, prompt_of(letters)), table.ready_rows)
    return [int(length) for length in found]


def test_each_endpoint_gets_the_length_of_its_own_contiguous_match() -> None:
    table = table_of(3)
    index = PrefixIndex(table)
    first, second, third = table.ready_rows.tolist()
    index.record(index.hashes("m", prompt_of("abcd")), first)
    index.record(index.hashes("m", prompt_of("abX")), second)
    assert matched(index, table, "abcde") == [4, 2, 0]
    # Holding a later block without the first is no match.
    index.record(index.hashes("m", prompt_of("abcde"))[3:], third)
    assert matched(index, table, "abcde") == [4, 2, 0]


def test_a_match_does_not_linger_for_the_next_request() -> None:
    table = table_of(2)
    index = PrefixIndex(table)
    index.record(index.hashes("m", prompt_of("ab")), int(table.ready_rows[0]))
    assert matched(index, table, "ab") == [2, 0]
    assert matched(index, table, "zz") == [0, 0]
    assert matched(index, table, "") == [0, 0]


def test_another_model_shares_nothing() -> None:
    table = table_of(1)
    index = PrefixIndex(table)
    index.record(index.hashes("m", prompt_of("ab")), int(table.ready_rows[0]))
    assert matched(index, table, "ab", model="other") == [0]


def test_only_full_blocks_count_and_long_prompts_are_cut() -> None:
    table = table_of(1)
    index = PrefixIndex(table)
    assert index.hashes("m", b"x" * (BLOCK - 1)) == []
    assert len(index.hashes("m", b"x" * (2 * BLOCK + 1))) == 2
    index.configure(max_tokens=3 * 64)
    assert len(index.hashes("m", b"x" * (20 * BLOCK))) == 3


def test_tails_are_evicted_before_heads_and_old_before_new() -> None:
    table = table_of(1)
    row = int(table.ready_rows[0])
    index = PrefixIndex(table)
    index.configure(capacity=4)
    index.record(index.hashes("m", prompt_of("abc")), row)
    index.record(index.hashes("m", prompt_of("xy")), row)
    assert matched(index, table, "abc") == [2]
    assert matched(index, table, "xy") == [2]
    index.record(index.hashes("m", prompt_of("ab")), row)
    index.record(index.hashes("m", prompt_of("q")), row)
    assert matched(index, table, "xy") == [1]
    assert matched(index, table, "ab") == [2]


def test_a_prompt_longer_than_the_capacity_keeps_its_head() -> None:
    table = table_of(1)
    index = PrefixIndex(table)
    index.configure(capacity=3)
    index.record(index.hashes("m", prompt_of("abcdefgh")), int(table.ready_rows[0]))
    assert matched(index, table, "abcdefgh") == [3]
    assert index.entries == 3


def test_capacity_and_block_size_follow_what_servers_report() -> None:
    table = table_of(2)
    index = PrefixIndex(table)
    first, second = table.ready_rows.tolist()
    table.block_size[first], table.num_blocks[first] = 16, 8000
    index.follow_block_size()
    assert index.block_tokens == 64
    assert index.capacity(first) == 2000
    table.block_size[second], table.num_blocks[second] = 128, 1 << 40
    index.follow_block_size()
    assert index.block_tokens == 128
    assert index.capacity(second) == MAX_CAPACITY
    index.configure(auto=False, capacity=77)
    assert (index.block_tokens, index.capacity(first)) == (64, 77)


def test_the_total_is_bounded_and_the_largest_server_gives_way() -> None:
    table = table_of(3)
    index = PrefixIndex(table, max_entries=200)
    first, second, _ = table.ready_rows.tolist()
    index.record(list(range(190)), first)
    index.record(list(range(1000, 1050)), second)
    assert index.entries == 200
    assert index.match(list(range(1000, 1050)), table.ready_rows).tolist() == [0, 50, 0]


def test_a_removed_endpoint_is_forgotten_before_its_row_has_another_tenant() -> None:
    table = table_of(2)
    index = PrefixIndex(table)
    row = int(table.ready_rows[0])
    index.record(index.hashes("m", prompt_of("ab")), row)
    table.replace([])
    table.replace(
        [Endpoint("new", "default", "10.9.9.9", 8000), Endpoint("newer", "default", "10.9.9.8", 8000)]
    )
    assert matched(index, table, "ab") == [0, 0]
    assert index.entries == 0


@given(st.sets(st.integers(0, 200)))
def test_bit_sets_hold_exactly_the_rows(rows: set[int]) -> None:
    bits = bits_of(np.array(sorted(rows), dtype=np.intp))
    assert {n for n in range(bits.bit_length()) if bits >> n & 1} == rows


class NaiveIndex:
    """The same rules, spelt out over plain lists."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.recent: dict[int, list[str]] = {}

    def record(self, letters: str, row: int) -> None:
        recent = self.recent.setdefault(row, [])
        for length in range(len(letters), 0, -1):
            if letters[:length] in recent:
                recent.remove(letters[:length])
            recent.append(letters[:length])
        del recent[: max(0, len(recent) - self.capacity)]

    def match(self, letters: str, row: int) -> int:
        length = 0
        while length < len(letters) and letters[: length + 1] in self.recent.get(row, ()):
            length += 1
        return length


LETTERS = st.text("ab", max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["record", "drop"]), LETTERS, st.integers(0, 3)), max_size=25), LETTERS
)
def test_agrees_with_the_naive_index(history: list[tuple[str, str, int]], asked: str) -> None:
    table = table_of(4)
    index, naive = PrefixIndex(table), NaiveIndex(capacity=7)
    index.configure(capacity=7)
    for what, letters, row in history:
        if what == "record":
            index.record(index.hashes("m", prompt_of(letters)), row)
            naive.record(letters, row)
        else:
            index.forget(row)
            naive.recent.pop(row, None)
        assert index.entries == sum(map(len, naive.recent.values()))
    assert matched(index, table, asked) == [naive.match(asked, row) for row in table.ready_rows.tolist()]
    # Only rows that are asked for are matched, in their order.
    some = table.ready_rows[1:4:2]
    found = index.match(index.hashes("m", prompt_of(asked)), some)
    assert found.tolist() == [naive.match(asked, row) for row in some.tolist()]


@pytest.mark.parametrize("size", [63, 5000])
def test_configured_block_sizes_stay_within_bounds(size: int) -> None:
    table = table_of(1)
    index = PrefixIndex(table)
    index.configure(block_tokens=size)
    assert 64 <= index.block_tokens <= 1024


def test_a_long_prompt_has_fewer_entries_than_blocks_and_matches_nearly_as_far() -> None:
    table = table_of(2)
    row = int(table.ready_rows[0])
    index = PrefixIndex(table)
    prompt = list(range(1, 2049))
    index.record(prompt, row)
    assert index.entries == 2048
    for shared in (*range(250, 270), 1023, 1024, 1025, 1039, 1040, 1041, 2047, 2048):
        found = index.match([*prompt[:shared], *range(-2048, shared - 2048)], table.ready_rows).tolist()
        step = 1 if shared <= 256 else 4 if shared <= 1024 else 16
        assert found == [shared - shared % step, 0]


def test_a_long_prompt_counts_with_all_its_blocks_against_the_capacity() -> None:
    table = table_of(1)
    row = int(table.ready_rows[0])
    index = PrefixIndex(table)
    index.configure(capacity=2048)
    first, second = list(range(1, 2049)), list(range(-2048, 0))
    index.record(first, row)
    index.record(second[:300], row)
    assert index.entries <= 2048
    assert index.match(first, table.ready_rows).tolist() == [2048 - 304]  # 19 entries of 16 blocks went
    index.record(second, row)
    assert index.match(first, table.ready_rows).tolist() == [0]
    assert index.match(second, table.ready_rows).tolist() == [2048]


def test_a_server_that_did_not_answer_keeps_what_it_held_before() -> None:
    table = table_of(1)
    row = int(table.ready_rows[0])
    index = PrefixIndex(table)
    index.record(list(range(1, 601)), row)
    index.discard(list(range(1, 601)), row, 302)
    assert index.match(list(range(1, 601)), table.ready_rows).tolist() == [300]
    assert index.entries == 300


def test_a_prompt_that_is_asked_about_for_ever_takes_no_more_memory() -> None:
    table = table_of(1)
    row = int(table.ready_rows[0])
    index = PrefixIndex(table)
    index.record([-1, -2, -3], row)
    for last in range(2000):
        index.record([*range(1, 40), 1000 + last % 7], row)
    named = sum(len(marks) for _, _, marks in index._rows[row].records)
    assert named < 10_000
    assert index.match([-1, -2, -3], table.ready_rows).tolist() == [3]
    assert index.entries == 3 + 39 + 7


#: Chains that share beginnings: (prompt, blocks that it shares with prompt 0, blocks).
CHAINS = st.tuples(st.integers(0, 3), st.integers(0, 1200), st.integers(1, 1200))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["record", "record", "discard", "forget"]), CHAINS, st.integers(0, 2)),
        max_size=12,
    ),
    st.integers(1, 3000),
)
def test_counts_and_bit_sets_agree_after_any_history(
    history: list[tuple[str, tuple[int, int, int], int]], capacity: int
) -> None:
    table = table_of(3)
    index = PrefixIndex(table, max_entries=4000)
    index.configure(capacity=capacity)
    for what, (prompt, shared, length), row in history:
        chain = [at if at < shared else at + (prompt << 20) for at in range(1, length + 1)]
        if what == "record":
            index.record(chain, row)
        elif what == "discard":
            index.discard(chain, row, shared // 2)
        else:
            index.forget(row)
        held = {row: set(each.stamps) for row, each in index._rows.items()}
        bits = {row: {mark for mark, rows in index._holders.items() if rows >> row & 1} for row in held}
        assert bits == held
        assert all(index._holders.values())
        sizes = {row: each.blocks for row, each in index._rows.items()}
        assert index.entries == sum(sizes.values()) <= 4000
        assert all(len(held[row]) <= blocks <= capacity for row, blocks in sizes.items())
        named = {mark for each in index._rows.values() for _, _, marks in each.records for mark in marks}
        assert named >= set(index._holders)
    for row in range(3):
        index.forget(row)
    assert index.entries == 0
    assert not index._holders
