"""Counts the work and the memory that a peer causes, and decides when it is too much. It reads no clock.

`sweep` resets the flood counters, so that a limit is a rate. Useful frames raise the limit on unproductive
ones: a peer that reads much data has to send many window updates.
"""

from typing import Final

from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import ProtocolError
from lean_grpc.limits import Limits

STREAMS_A_FRAME: Final = 64
"""Streams whose windows are checked in about the time that one frame takes."""

USEFUL_INCREMENT: Final = 4_096
"""Increment of the connection's window from which checking the streams that wait for it is not charged."""


class HeldMessages:
    """Counts the bytes of unfinished or unread messages that the layer above holds for all streams."""

    __slots__ = ("_limit", "held")

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.connection_receive_limit
        self.held = 0

    @property
    def full(self) -> bool:
        """Tell whether more is held than `Limits.connection_receive_limit`."""
        return self.held > self._limit


class FloodGuard:
    """The flood counters of one connection."""

    __slots__ = ("_early_resets", "_limits", "_resets_allowed", "_unproductive", "useful")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # A peer may reset all its open streams at once, as a proxy does when its clients leave.
        self._resets_allowed = max(limits.early_resets, limits.max_concurrent_streams)
        self._unproductive = 0
        self._early_resets = 0
        self.useful = 0

    def note_unproductive(self, looked_at: int = 0) -> None:
        """Count an unproductive frame, and one more for every `STREAMS_A_FRAME` of the streams `looked_at`.

        Raises:
            ProtocolError: ENHANCE_YOUR_CALM, once there are too many of them.
        """
        self._unproductive += 1 + looked_at // STREAMS_A_FRAME
        limits = self._limits
        if self._unproductive > limits.unproductive_frames + limits.unproductive_per_useful * self.useful:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many unproductive frames")

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
