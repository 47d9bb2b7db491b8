"""Counts the work and the memory that a peer causes, and decides when it is too much. It reads no clock.

`sweep` resets the flood counters, so that a limit is a rate. Useful frames raise the limit on unproductive
ones: a peer that reads much data has to send many window updates.
"""

from typing import Final, Protocol

from lean_grpc.http2.codes import ErrorCode
from lean_grpc.http2.errors import ProtocolError
from lean_grpc.limits import Limits

STREAMS_A_FRAME: Final = 64
"""Streams whose windows are checked in about the time that one frame takes."""

USEFUL_INCREMENT: Final = 4_096
"""Increment of the connection's window from which checking the streams that wait for it is not charged."""


#: A call ends when unfinished messages fill this many times `Limits.connection_receive_limit`.
HARD_LIMITS: Final = 4


class Receiver(Protocol):
    """A call whose message is not whole."""

    def go_on_receiving(self) -> None:
        """Open the stream's window for what has been received."""
        ...


class HeldMessages:
    """Counts the bytes of unfinished or unread messages that the layer above holds for all streams.

    Above `Limits.connection_receive_limit`, calls with unfinished messages take turns: the windows of all but
    one stay closed, so that messages become whole one after the other. Closing the connection's window
    instead could leave all of them unfinished for ever.
    """

    __slots__ = ("_first", "_limit", "_waiting", "_window", "held")

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.connection_receive_limit
        self._window = limits.stream_window
        self.held = 0
        self._first: Receiver | None = None  # whose turn it is
        self._waiting: dict[Receiver, None] = {}  # in order

    @property
    def full(self) -> bool:
        """Tell whether more is held than `Limits.connection_receive_limit`."""
        return self.held > self._limit

    @property
    def overfull(self) -> bool:
        """Tell whether so much is held that a call has to end."""
        return self.held > HARD_LIMITS * self._limit

    def must_wait(self, receiver: Receiver) -> bool:
        """Tell whether a receiver has to wait; `go_on_receiving` is called when its turn comes."""
        if self._first is None:
            self._first = receiver
        if self._first is receiver:
            return False
        self._waiting[receiver] = None
        return True

    def release(self, receiver: Receiver) -> None:
        """Note that a message of the receiver is whole, or its call paused or over: others may go on."""
        waiting = self._waiting
        if waiting:
            waiting.pop(receiver, None)
        if self._first is receiver:
            self._first = None
        room = self._limit - self.held
        while waiting and (room > 0 or self._first is None):
            following = next(iter(waiting))
            del waiting[following]
            if self._first is None:
                self._first = following
            room -= self._window
            following.go_on_receiving()


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
