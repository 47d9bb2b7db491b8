"""What a gateway gives for a job. Pure."""

from typing import NamedTuple, Protocol

from batch_subscriber.jobs import Job


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    content_type: str
    retry_after: str | None
    body: bytes


class GatewayFault(Exception):  # noqa: N818 - it is an expected end of a request
    """No whole answer came; the message names the kind of fault."""

    def __init__(self, message: str, *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.is_unreachable = is_unreachable
        """The connection failed: the fault may be the gateway's alone."""


class Sender(Protocol):
    """Sends jobs."""

    async def post(self, job: Job, timeout_s: float) -> Answer:
        """Send a job; return its answer. Raises GatewayFault, also when it is not over after `timeout_s`."""
        ...
