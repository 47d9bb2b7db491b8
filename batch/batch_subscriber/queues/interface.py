"""The interface of a queue. `tests/support/batch_contracts.py` holds what every implementation must do.

A queue delivers at least once. It keeps a job until it is acknowledged or dead: one that is received is
hidden for a time (the visibility time-out) and comes again when it is neither extended, acknowledged nor
given back until then. Methods raise QueueUnavailableError when the queue cannot be reached; every one may be
called again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batch_subscriber.jobs import DeadLetter, Job


@dataclass(frozen=True, slots=True)
class Delivery:
    """A job that this process holds until its visibility time-out."""

    job: Job
    handle: str
    """The queue's own name of this delivery; every delivery of a job has another."""
    deliveries: int
    """How often the job was handed out, this time included; 1 where the queue does not count."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a queue holds. None: the queue cannot tell."""

    waiting: int | None
    """Jobs that could be received, or will be after a delay."""
    held: int | None
    """Jobs that are hidden because a process has them."""
    oldest_submitted_at: float | None
    """`submitted_at` of the oldest job, held ones included, Unix time; None also for an empty queue."""


class JobQueue(Protocol):
    """A queue of jobs."""

    async def put(self, jobs: Sequence[Job]) -> None:
        """Accept jobs. When it returns they survive the end of any process.

        A job that the queue has already, by id and generation, may be put again; the result is one job or
        two equal ones. Raises QueueFullError at the queue's bound, and has accepted none then.
        """
        ...

    async def receive(self, limit: int, visibility_s: float, wait_s: float) -> list[Delivery]:
        """Return up to `limit` jobs, each hidden for `visibility_s` seconds.

        Waits at most `wait_s` seconds for the first one and returns at once when there is any. Older jobs
        come first, roughly. What the queue holds and is no job goes to the dead letters (cause MALFORMED).
        Cancelling the call loses no job: those taken come again after their time-out.
        """
        ...

    async def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> set[str]:
        """Hide the jobs for `visibility_s` seconds from now; return the handles that are lost."""
        ...

    async def ack(self, delivery: Delivery) -> bool:
        """Remove the job for good; True when this delivery still held it, or the queue cannot tell.

        When it is not held any more, another delivery may have the job: nothing is removed then where the
        queue can tell.
        """
        ...

    async def nack(self, delivery: Delivery, job: Job, delay_s: float) -> None:
        """Have `job`, the delivery's with its failures noted, come again after `delay_s` seconds.

        Nothing happens when the delivery does not hold the job any more.
        """
        ...

    async def dead_letter(self, delivery: Delivery, letter: DeadLetter) -> None:
        """Move the job to the dead letters. A letter of the same key that is there already stays.

        The letter is durable before the job leaves the queue.
        """
        ...

    async def backlog(self) -> Backlog:
        """Return what the queue holds."""
        ...

    async def close(self) -> None:
        """Let go of files and connections. Jobs that are held come again after their time-out."""
        ...


class DeadLetters(Protocol):
    """The dead letters of a queue, for people. A queue that keeps its own implements both protocols."""

    async def letters(self, limit: int, after: str = "") -> list[DeadLetter]:
        """Return up to `limit` letters in the order of their keys, those with a key above `after`."""
        ...

    async def letter(self, key: str) -> DeadLetter | None:
        """Return one letter."""
        ...

    async def drop(self, key: str) -> bool:
        """Remove one letter for good; False when there was none."""
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...
