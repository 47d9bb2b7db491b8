"""Errors of the API, in OpenAI's form. Pure."""

from typing import Any


class ApiError(Exception):
    """A request that is refused; the message says what to change."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind

    def body(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def not_found(what: str, name: str) -> ApiError:
    """Return the error for an id that there is none of; `what` is `File` or `Batch`."""
    return ApiError(404, f"No such {what} object: {name[:100]}", param="id", code="not_found")
