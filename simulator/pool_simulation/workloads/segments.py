"""Segment ids: a number for each content of a workload, from where the content stands. Pure."""

from typing import Final

#: Turns of a session, and sessions of a client, that the ids can number.
MAX_TURNS: Final = 1 << 10
MAX_SESSIONS: Final = 1 << 24
MAX_CLIENTS: Final = 1 << 17

_SOURCE: Final = 52
_SHARED: Final = 1 << 62
_HASH: Final = 1 << 63
_LOW: Final = (1 << _SOURCE) - 1


class SegmentIds:
    """The segment ids of one stream or trace; those of different sources differ."""

    __slots__ = ("_base",)

    def __init__(self, source: int) -> None:
        """`source` numbers the stream or trace within the workload, in [0, 1024)."""
        self._base = source << _SOURCE

    def message(self, session: int, turn: int) -> int:
        """Return the id of what a turn adds to its session's prompt. `session` is below 2**41."""
        return self._base + (session << 11) + 2 * turn

    def answer(self, session: int, turn: int) -> int:
        """Return the id of a turn's answer."""
        return self.message(session, turn) + 1

    def shared(self, number: int) -> int:
        """Return the id of a numbered content that many sessions share."""
        return _SHARED + self._base + number

    def of_hash(self, number: int) -> int:
        """Return the id of a block that a trace names by a number; numbers from 2**52 up may collide."""
        return _HASH + self._base + (number & _LOW)
