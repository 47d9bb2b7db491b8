"""The states of an exchange's two sides, and changes that no message of the side brings. Data.

The changes that messages bring stand in the tables of `exchange`, beside the methods that take the messages.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from ext_proc.wire import (
    BODY_MODE_BUFFERED,
    BODY_MODE_FULL_DUPLEX_STREAMED,
    BODY_MODE_NONE,
    BODY_MODE_STREAMED,
)


class Request(IntEnum):
    """How far the request has come."""

    EXPECTED = 0
    BUFFERING = 1
    """Its body is held until it is whole."""
    WAITING = 2
    """Complete; the processor has not answered yet."""
    WAITING_UNSEEN = 3
    """The processor has not answered yet; the proxy does not show the body, whose trailers may follow."""
    ANSWERED = 4
    """Complete and answered."""
    UNSEEN = 5
    """Answered; the proxy does not show the body, whose trailers may follow."""
    ABANDONED = 6
    """A response came before the processor had answered: the proxy replied by itself."""
    PASSING = 7
    """Answered; the body goes on piece by piece."""
    WAITING_PASSING = 8
    """The processor, which does not look at the body, has not answered yet; what comes of it is held."""
    WHOLE = 9
    """Its headers go on with the body, which the proxy buffers and sends in one piece."""
    STEPPING = 10
    """Answered; the proxy sends the body on piece by piece, each when it has a reply."""
    WAITING_STEPPING = 11
    """The processor, which does not look at the body, has not answered yet; pieces may come already."""


class Response(IntEnum):
    """How far the response has come."""

    EXPECTED = 0
    STREAMING = 1
    OVER = 2
    EXPECTED_STEPPING = 3
    STEPPING = 4
    """The proxy sends the body on piece by piece, each when it has a reply."""
    EXPECTED_WHOLE = 5
    WHOLE = 6
    """The proxy buffers the body and sends it in one piece; trailers may follow."""


#: What the proxy's mode of response bodies makes of the response before it comes.
EXPECTED_IN_MODE: Final[Mapping[int, Response]] = {
    BODY_MODE_NONE: Response.EXPECTED,
    BODY_MODE_STREAMED: Response.EXPECTED_STEPPING,
    BODY_MODE_BUFFERED: Response.EXPECTED_WHOLE,
    BODY_MODE_FULL_DUPLEX_STREAMED: Response.EXPECTED,
}
#: What a processor that does not look at the body makes of it.
WITHOUT_HOLDING: Final[Mapping[Request, Request]] = {Request.BUFFERING: Request.PASSING}
#: What the response's headers make of the request: one without an answer never reaches a model server.
AFTER_RESPONSE_HEADERS: Final[Mapping[Request, Request]] = {
    Request.EXPECTED: Request.ABANDONED,
    Request.BUFFERING: Request.ABANDONED,
    Request.WAITING: Request.ABANDONED,
    Request.WAITING_UNSEEN: Request.ABANDONED,
    Request.ANSWERED: Request.ANSWERED,
    Request.UNSEEN: Request.UNSEEN,
    Request.PASSING: Request.PASSING,
    Request.WAITING_PASSING: Request.ABANDONED,
    Request.WHOLE: Request.ABANDONED,
    Request.STEPPING: Request.STEPPING,
    Request.WAITING_STEPPING: Request.ABANDONED,
}
#: What a processor's Waiting makes of a request that would be answered at once, and back.
WHILE_WAITING: Final[Mapping[Request, Request]] = {
    Request.ANSWERED: Request.WAITING,
    Request.UNSEEN: Request.WAITING_UNSEEN,
    Request.PASSING: Request.WAITING_PASSING,
    Request.STEPPING: Request.WAITING_STEPPING,
}
AFTER_WAITING: Final[Mapping[Request, Request]] = {after: state for state, after in WHILE_WAITING.items()}
