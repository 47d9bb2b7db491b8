"""The pure parts of the list-watch: lines, back-off, log lines, the collection."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_client.backoff import FIRST_S, LONGEST_ASKED_S, LONGEST_S, Backoff
from cluster_client.collection import Change, Collection, lists_again
from cluster_client.lines import Lines, LineTooLong
from cluster_client.objects import key_of, version_of
from cluster_client.sparse_log import INTERVAL_S, SparseLog


@given(st.lists(st.binary(max_size=9).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_are_the_same_however_a_stream_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    cutter = Lines(9)
    assert [line for piece in pieces for line in cutter.feed(piece)] == [line for line in lines if line]


def test_half_a_line_is_held_until_its_rest_comes() -> None:
    lines = Lines(100)
    assert list(lines.feed(b"one\ntw")) == [b"one"]
    assert list(lines.feed(b"")) == []
    assert list(lines.feed(b"o\n\n\nthree")) == [b"two"]
    assert list(lines.feed(b"\n")) == [b"three"]


@pytest.mark.parametrize(
    "pieces", [[b"x" * 11], [b"x" * 10, b"x"], [b"y\n" + b"x" * 11], [b"x" * 11 + b"\n"]]
)
def test_a_line_is_bounded(pieces: list[bytes]) -> None:
    lines = Lines(10)
    *first, last = pieces
    for piece in first:
        assert list(lines.feed(piece)) == []
    ending = lines.feed(last)
    if last.startswith(b"y\n"):
        assert next(ending) == b"y", "what came before the long line is not lost"
    with pytest.raises(LineTooLong, match="10 bytes"):
        next(ending)


def longest(_low: float, high: float) -> float:
    return high


def test_pauses_double_to_a_longest_and_begin_again() -> None:
    backoff = Backoff(longest)
    pauses = [backoff.next_s() for _ in range(10)]
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses[-2:] == [LONGEST_S, LONGEST_S]
    backoff.reset()
    assert backoff.next_s() == FIRST_S


@pytest.mark.parametrize("asked", [3.0, 20.0, 1e6])
def test_a_server_may_ask_for_a_longer_pause_within_a_limit(asked: float) -> None:
    pauses = {Backoff(random.Random(seed).uniform).next_s(asked) for seed in range(50)}
    assert min(pauses) >= min(asked, LONGEST_ASKED_S)
    assert max(pauses) <= 1.25 * LONGEST_ASKED_S
    assert len(pauses) > 40, "clients that were asked for the same pause come back apart"


def test_a_fault_that_lasts_is_written_once_and_flapping_ones_seldom() -> None:
    lines = SparseLog()
    assert lines.fault("refused", 0.0) == "refused"
    assert lines.fault("refused", 1e9) is None
    assert lines.recovered()
    assert not lines.recovered()
    # From here on a fault and a recovery ten times a second.
    lines = SparseLog()
    written = []
    for tick in range(int(10 * 10 * INTERVAL_S)):
        written.append(lines.fault(f"cut {tick % 3}", tick / 10))
        lines.recovered()
    said = [line for line in written if line is not None]
    assert len(said) == 10
    assert said[1].endswith(f"({int(10 * INTERVAL_S) - 1} faults before this one not logged)")


def test_a_list_replaces_what_was_known() -> None:
    collection: Collection[int] = Collection({("ns", "gone"): 1, ("ns", "same"): 2, ("ns", "new"): 3})
    changes = collection.replace({("ns", "same"): 2, ("ns", "new"): 4, ("ns", "more"): 5})
    assert collection.objects == {("ns", "same"): 2, ("ns", "new"): 4, ("ns", "more"): 5}
    assert changes == [
        Change(("ns", "gone"), 1, None),
        Change(("ns", "new"), 3, 4),
        Change(("ns", "more"), None, 5),
    ]


def test_an_event_that_makes_no_difference_is_no_change() -> None:
    collection: Collection[int] = Collection()
    key = ("ns", "a")
    assert collection.put(key, 1) == [Change(key, None, 1)]
    assert collection.put(key, 1) == []
    assert collection.put(key, 0) == [Change(key, 1, 0)]
    assert collection.put(key, None) == [Change(key, 0, None)]
    assert collection.put(key, None) == []
    assert collection.objects == {}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, True) for status in (400, 404, 410, 504)),
        *((status, False) for status in (0, 401, 403, 429, 500, 503)),
    ],
)
def test_which_refusals_ask_for_a_new_list(status: int, expected: bool) -> None:
    assert lists_again(status) is expected


@pytest.mark.parametrize("item", [{}, {"metadata": None}, {"metadata": {"name": None}}, {"metadata": "x"}])
def test_an_object_without_a_name_has_an_empty_key(item: dict[str, object]) -> None:
    assert key_of(item) == ("", "")
    assert version_of(item) == ""
