"""Pieces of large bodies are kept in memory of their own."""

import gc
import weakref

from ext_proc.segments import SEGMENT_BYTES, Segments


def test_pieces_are_kept_as_they_are() -> None:
    segments = Segments()
    pieces = [bytes([number % 251]) * (number * 997 % 70_000) for number in range(60)]
    kept = [segments.keep(piece) for piece in pieces]
    assert [bytes(each) for each in kept] == pieces
    assert len({id(each.obj) for each in kept}) == -(-sum(map(len, pieces)) // SEGMENT_BYTES) + 1


def test_a_piece_longer_than_a_segment_has_one_of_its_own() -> None:
    segments = Segments()
    first = segments.keep(b"a")
    long = segments.keep(b"b" * (SEGMENT_BYTES + 1))
    assert bytes(long) == b"b" * (SEGMENT_BYTES + 1)
    assert bytes(first) == b"a"


def test_a_segment_goes_with_the_last_of_its_pieces() -> None:
    segments = Segments()
    kept = [segments.keep(b"x" * (SEGMENT_BYTES // 2)) for _ in range(4)]
    gone = weakref.ref(kept[0].obj)
    del kept[0]
    assert gone() is not None
    del kept[0]
    gc.collect()
    assert gone() is None
    assert bytes(kept[1]) == b"x" * (SEGMENT_BYTES // 2)
