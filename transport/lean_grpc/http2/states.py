"""The stream states of RFC 9113, section 5.1, as data: event -> state -> next state or fault.

Every transition lives here, the same for client and server. Reserved states do not exist, because push is
switched off in both roles. A closed stream has no object any more: `StreamLifecycle` judges a frame on it by
how the stream ended.
"""

from enum import IntEnum
from typing import Final


class State(IntEnum):
    """Where a stream stands, seen from our side."""

    IDLE = 0
    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    HALF_CLOSED_REMOTE = 3
    CLOSED = 4


class Refusal(IntEnum):
    """The result of an event that a state does not allow. Negative, so that it differs from every state."""

    CONNECTION_PROTOCOL_ERROR = -1
    STREAM_STREAM_CLOSED = -2
    MISUSE = -3


class Event(IntEnum):
    """What can happen to a stream. END_STREAM is an event of its own, after the frame that carries it."""

    RECEIVE_HEADERS = 0
    RECEIVE_DATA = 1
    RECEIVE_END = 2
    RECEIVE_RESET = 3
    RECEIVE_WINDOW = 4
    SEND_HEADERS = 5
    SEND_DATA = 6
    SEND_END = 7
    SEND_RESET = 8


_I, _O, _L, _R, _C = State
_PROTOCOL, _CLOSED, _MISUSE = Refusal

TRANSITIONS: Final[dict[Event, dict[State, State | Refusal]]] = {
    Event.RECEIVE_HEADERS: {_I: _O, _O: _O, _L: _L, _R: _CLOSED, _C: _CLOSED},
    Event.RECEIVE_DATA: {_I: _PROTOCOL, _O: _O, _L: _L, _R: _CLOSED, _C: _CLOSED},
    Event.RECEIVE_END: {_I: _PROTOCOL, _O: _R, _L: _C, _R: _CLOSED, _C: _CLOSED},
    Event.RECEIVE_RESET: {_I: _PROTOCOL, _O: _C, _L: _C, _R: _C, _C: _C},
    Event.RECEIVE_WINDOW: {_I: _PROTOCOL, _O: _O, _L: _L, _R: _R, _C: _C},
    Event.SEND_HEADERS: {_I: _O, _O: _O, _L: _MISUSE, _R: _R, _C: _MISUSE},
    Event.SEND_DATA: {_I: _MISUSE, _O: _O, _L: _MISUSE, _R: _R, _C: _MISUSE},
    Event.SEND_END: {_I: _MISUSE, _O: _L, _L: _MISUSE, _R: _C, _C: _MISUSE},
    Event.SEND_RESET: {_I: _MISUSE, _O: _C, _L: _C, _R: _C, _C: _C},
}


def _row(event: Event) -> tuple[int, ...]:
    """Return the row of an event as a tuple that a state indexes: one lookup a frame."""
    return tuple(int(TRANSITIONS[event][state]) for state in State)


ON_RECEIVE_HEADERS: Final = _row(Event.RECEIVE_HEADERS)
ON_RECEIVE_DATA: Final = _row(Event.RECEIVE_DATA)
ON_RECEIVE_END: Final = _row(Event.RECEIVE_END)
ON_SEND_HEADERS: Final = _row(Event.SEND_HEADERS)
ON_SEND_DATA: Final = _row(Event.SEND_DATA)
ON_SEND_END: Final = _row(Event.SEND_END)

# Plain integers for the hot path: an enum member costs an attribute look-up at each use.
IDLE: Final = int(State.IDLE)
OPEN: Final = int(State.OPEN)
HALF_CLOSED_LOCAL: Final = int(State.HALF_CLOSED_LOCAL)
HALF_CLOSED_REMOTE: Final = int(State.HALF_CLOSED_REMOTE)
CLOSED: Final = int(State.CLOSED)
