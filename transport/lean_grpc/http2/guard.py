"""Counts what a hostile peer makes us do or hold. It decides when that is enough; it reads no clock.

Counters start afresh with each `sweep`, so that a limit is a rate. Work that moves something pays for a few
frames that do not: a peer that reads much sends many window updates.
"""

from typing import Final

from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import ProtocolError
from lean_grpc.limits import Limits

STREAMS_A_FRAME: Final = 64
"""Streams that we look at in about the time that a frame costs."""

USEFUL_INCREMENT: Final = 4_096
"""Bytes from which opening the connection's window is worth a look at all streams that wait for it."""


class Shelf:
    """Counts the bytes of unfinished or unread messages that the layer above holds, of all streams."""

    __slots__ = ("_limit", "held")

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.connection_receive_limit
        self.held = 0

    @property
    def full(self) -> bool:
        """Tell whether more is held than may be."""
        return self.held > self._limit


class FloodGuard:
    """The flood counters of one connection."""

    __slots__ = ("_early_resets", "_limits", "_resets_allowed", "_unproductive", "useful")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Who may hold that many streams may also give all of them up at once: clients of a proxy that leave.
        self._resets_allowed = max(limits.early_resets, limits.max_concurrent_streams)
        self._unproductive = 0
        self._early_resets = 0
        self.useful = 0

    def note_unproductive(self, looked_at: int = 0) -> None:
        """Count a frame that moves nothing, for more if it made us look at many streams.

        Raises:
            ProtocolError: ENHANCE_YOUR_CALM, once there are too many of them.
        """
        self._unproductive += 1 + looked_at // STREAMS_A_FRAME
        limits = self._limits
        if self._unproductive > limits.unproductive_frames + limits.unproductive_per_useful * self.useful:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def note_early_reset(self) -> None:
        """Count a stream that was reset, by the peer or for its fault, before it was answered.

        Raises:
            ProtocolError: ENHANCE_YOUR_CALM, once there are too many of them.
        """
        self._early_resets += 1
        if self._early_resets > self._resets_allowed:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams reset before an answer")

    def sweep(self) -> None:
        """Begin a new interval."""
        self._unproductive = self._early_resets = self.useful = 0
