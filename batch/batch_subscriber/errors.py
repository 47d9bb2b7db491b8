"""What can go wrong between a queue, the gateway and a result store. Pure.

BatchError
├── JobError           a job that is no valid one: the sender has to change it
├── ConfigurationError settings that cannot work: exit status 2
├── QueueFullError            the queue is at its bound: the sender comes again later
├── QueueUnavailableError     the queue cannot be reached or written: retry
├── StoreUnavailableError     the result store cannot be reached or written: retry
└── ResultError        a result that the store can never take: larger than its bound
"""


class BatchError(Exception):
    """Base of every expected error of the package."""


class JobError(BatchError):
    """A job has a value that is out of bounds."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        """Name of the job's field, as on the wire."""
        self.reason = reason


class ConfigurationError(BatchError):
    """The settings cannot work; the message names the setting and what to write instead."""


class QueueFullError(BatchError):
    """Nothing of what was put has been accepted."""


class QueueUnavailableError(BatchError):
    """The queue did not do what it was asked for, or it is unknown whether it did; trying again is safe."""


class StoreUnavailableError(BatchError):
    """The store did not answer, or it is unknown whether it has written; trying again is safe."""


class ResultError(BatchError):
    """The store will never take this result."""
