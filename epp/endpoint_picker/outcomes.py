"""What can become of a request at the picker: a closed set, each member with its HTTP status and reason.

An expected refusal is a value of this enum, never an exception.
"""

from enum import Enum


class Outcome(Enum):
    """How the picker answered. The value is the low-cardinality metric label."""

    PICKED = "picked"
    BAD_REQUEST = "bad-request"
    NO_ENDPOINTS = "rejected-no-endpoints"
    SATURATED = "rejected-saturated"
    SHUTTING_DOWN = "rejected-shutting-down"
    """The decision waited when the picker began to drain."""
    TOO_LARGE = "rejected-too-large"
    OVERLOADED = "rejected-overloaded"
    """The picker itself holds as many bytes of unsent bodies as it may."""

    @property
    def http_status(self) -> int:
        """Return the status of the ImmediateResponse; 200 for a pick."""
        return _STATUS[self]

    @property
    def code(self) -> str:
        """Return the word that the response body names, as existing pickers spell it."""
        return _CODE[self]


_STATUS = {
    Outcome.PICKED: 200,
    Outcome.BAD_REQUEST: 400,
    Outcome.NO_ENDPOINTS: 503,
    Outcome.SATURATED: 429,
    Outcome.SHUTTING_DOWN: 503,
    Outcome.TOO_LARGE: 413,
    Outcome.OVERLOADED: 503,
}
_CODE = {
    Outcome.PICKED: "OK",
    Outcome.BAD_REQUEST: "BadRequest",
    Outcome.NO_ENDPOINTS: "ServiceUnavailable",
    Outcome.SATURATED: "ResourceExhausted",
    Outcome.SHUTTING_DOWN: "ServiceUnavailable",
    Outcome.TOO_LARGE: "RequestTooLarge",
    Outcome.OVERLOADED: "ServiceUnavailable",
}
