"""The errors of a read of the API server. Pure.

ApiError            the API server refused, or cannot be used
ApiUnavailable      no answer came, or it broke off
    ApiSilent       a time limit passed: for the answer, for a page, or for silence on a watch
"""


class ApiError(Exception):
    """The API server refused, or cannot be used. `status` is the HTTP or Status code, 0 without one."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        """Seconds of Retry-After; 0 without one."""


class ApiUnavailable(Exception):  # noqa: N818 - a state of the world, not a fault of the caller
    """The connection could not be made, broke, or brought no answer in time."""


class ApiSilent(ApiUnavailable):
    """A time limit of `api.py` passed: for an answer, for a page, or for silence on a watch."""
