"""The closed set of answers that the picker can give, each with its HTTP status and reason.

An expected refusal is a value of this enum, never an exception.
"""

from enum import Enum


class Outcome(Enum):
    """How the picker answered. The value is the low-cardinality metric label."""

    PICKED = "picked"
    BAD_REQUEST = "bad-request"
    NO_ENDPOINTS = "rejected-no-endpoints"
    SATURATED = "rejected-saturated"
    NOT_CACHED = "rejected-not-cached"
    """The client asks for an answer only if the prompt is cached (`Prefer: if-available`)."""
    SHUTTING_DOWN = "rejected-shutting-down"
    """The decision waited when the picker began to drain."""
    TOO_LARGE = "rejected-too-large"
    HEADERS_TOO_LARGE = "rejected-headers-too-large"
    UNREAD_ENCODING = "unread-encoding"
    """The API demands a model, and the body is in an encoding that is not read."""
    OVERLOADED = "rejected-overloaded"
    """The picker holds as many body bytes as `--max-buffered-bytes` allows."""
    TTL_EXPIRED = "rejected-ttl-expired"
    """It waited in the queue for as long as it may."""
    EVICTED = "evicted"
    """It was taken back from its server for a more important request."""
    CANCELLED = "rejected-context-cancelled"
    """The client left while it waited in the queue; there is no answer."""
    INTERNAL = "internal-error"
    """A plugin failed on a request that went through the queue, or the proxy shows no body to a pool that
    needs it."""

    @property
    def http_status(self) -> int:
        """Return the status of the ImmediateResponse; 200 for a pick."""
        return _STATUS[self]

    @property
    def code(self) -> str:
        """Return the `error_code` of the metrics, spelt as existing pickers do."""
        return _CODE[self]

    @property
    def retry_after(self) -> int:
        """Return the seconds after which a retry makes sense; 0 where it would change nothing."""
        return _RETRY_AFTER.get(self, 0)


_STATUS = {
    Outcome.PICKED: 200,
    Outcome.BAD_REQUEST: 400,
    Outcome.NO_ENDPOINTS: 503,
    Outcome.SATURATED: 429,
    Outcome.NOT_CACHED: 412,
    Outcome.SHUTTING_DOWN: 503,
    Outcome.TOO_LARGE: 413,
    Outcome.HEADERS_TOO_LARGE: 431,
    Outcome.UNREAD_ENCODING: 415,
    Outcome.OVERLOADED: 503,
    Outcome.TTL_EXPIRED: 429,
    Outcome.EVICTED: 429,
    Outcome.CANCELLED: 503,
    Outcome.INTERNAL: 500,
}
_CODE = {
    Outcome.PICKED: "OK",
    Outcome.BAD_REQUEST: "BadRequest",
    Outcome.NO_ENDPOINTS: "ServiceUnavailable",
    Outcome.SATURATED: "ResourceExhausted",
    Outcome.NOT_CACHED: "PreconditionFailed",
    Outcome.SHUTTING_DOWN: "ServiceUnavailable",
    Outcome.TOO_LARGE: "RequestTooLarge",
    Outcome.HEADERS_TOO_LARGE: "RequestHeadersTooLarge",
    Outcome.UNREAD_ENCODING: "UnsupportedMediaType",
    Outcome.OVERLOADED: "ServiceUnavailable",
    Outcome.TTL_EXPIRED: "ResourceExhausted",
    Outcome.EVICTED: "ResourceExhausted",
    Outcome.CANCELLED: "ServiceUnavailable",
    Outcome.INTERNAL: "Internal",
}
_RETRY_AFTER = {
    Outcome.NO_ENDPOINTS: 2,
    Outcome.SATURATED: 1,
    Outcome.SHUTTING_DOWN: 1,
    Outcome.OVERLOADED: 1,
    Outcome.TTL_EXPIRED: 1,
    Outcome.EVICTED: 1,
}
