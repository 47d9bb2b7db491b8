"""The states of an exchange's two sides, and changes that no message of the side brings. Data.

The changes that messages bring stand in the tables of `exchange`, beside the methods that take the messages.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


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


class Response(IntEnum):
    """How far the response has come."""

    EXPECTED = 0
    STREAMING = 1
    OVER = 2


#: What body mode NONE makes of a request whose headers announce a body.
WITHOUT_BODY: Final[Mapping[Request, Request]] = {Request.BUFFERING: Request.UNSEEN}
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
}
#: What a processor's Waiting makes of a request that would be answered at once, and back.
WHILE_WAITING: Final[Mapping[Request, Request]] = {
    Request.ANSWERED: Request.WAITING,
    Request.UNSEEN: Request.WAITING_UNSEEN,
    Request.PASSING: Request.WAITING_PASSING,
}
AFTER_WAITING: Final[Mapping[Request, Request]] = {after: state for state, after in WHILE_WAITING.items()}
