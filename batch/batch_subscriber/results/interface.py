"""The interface of a result store. `tests/support/batch_contracts.py` holds what every one must do."""

from typing import Protocol

from batch_subscriber.jobs import Result


class ResultStore(Protocol):
    """Keeps one result for each job id and generation.

    Methods raise StoreUnavailableError when the store cannot be reached; every one may be called again.
    """

    async def write(self, result: Result) -> bool:
        """Keep a result unless there is one for its job id and generation; True when this one is kept.

        When it returns the result survives the end of any process. Of several that write at once one wins,
        and no reader ever sees half of one. Raises ResultError for one that the store can never take.
        """
        ...

    async def read(self, job_id: str, generation: str) -> Result | None:
        """Return the result of a job, None while there is none."""
        ...

    async def exists(self, job_id: str, generation: str) -> bool:
        """Return whether the job has a result."""
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...
