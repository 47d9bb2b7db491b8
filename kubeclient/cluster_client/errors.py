"""How a read of the API server fails. Pure.

ApiError            the API server refused, or cannot be used
ApiUnavailable      no answer came, or it broke off
    ApiSilent       a watch brought nothing for longer than a living one would
"""


class ApiError(Exception):
    """The API server refused, or cannot be used. `status` is the HTTP or Status code, 0 without one."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        """How long the server asks to be left alone, in seconds; 0 when it does not ask."""


class ApiUnavailable(Exception):  # noqa: N818 - a state of the world, not a fault of the caller
    """The connection could not be made, broke, or brought no answer in time."""


class ApiSilent(ApiUnavailable):
    """A watch brought neither event nor bookmark in the time in which a living one brings a bookmark."""
