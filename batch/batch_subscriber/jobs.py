"""A job, the result that it ends in, and its dead letter. Pure.

A job is one POST request that can wait. It is named by its `id` and a `generation` token: the sender chooses
the id, the token is made when the job is accepted. A result belongs to both, so that a job that reuses an id
never finds the result of an older one.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from batch_subscriber.errors import JobError

#: Bounds of a job.
MAX_NAME_CHARS: Final = 256
MAX_PATH_CHARS: Final = 1024
MAX_HEADERS: Final = 32
MAX_HEADER_BYTES: Final = 8192
MAX_BODY_BYTES: Final = 8 * 2**20

#: Failures that a job carries along; older ones are left out.
MAX_FAILURES: Final = 8
MAX_CAUSE_CHARS: Final = 500

#: The client of the gateway writes these itself.
OWN_HEADERS: Final = frozenset(
    {
        "host", "connection", "content-length", "transfer-encoding", "keep-alive", "te", "trailer", "upgrade",
        "proxy-connection", "expect", "accept-encoding",
    }
)  # fmt: skip

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_GENERATION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PATH: Final = re.compile(r"/[\x21-\x7e]*")
#: What a proxy or a client may take for a step out of the gateway's path: ".", ".." and empty segments.
_STEP: Final = re.compile(r"/(\.|%2e){0,2}(?=[/\\])|/(\.|%2e){1,2}$|\\", re.IGNORECASE)


def is_plain_path(path: str) -> bool:
    """Return whether a path, before its query, stays below what it is appended to, normalised or not."""
    return _STEP.search(path.partition("?")[0]) is None


class Failure(NamedTuple):
    """One attempt that failed."""

    at: float
    """Unix time, seconds."""
    cause: str
    """What the gateway or the connection answered; never prompt text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request that can wait. `Job.checked` makes one from foreign values."""

    id: str
    """Chosen by the sender: 1 to 256 printable characters."""
    generation: str
    """Token of this use of the id: letters, digits, `-` and `_`, 1 to 64."""
    path: str
    """Path and query at the gateway, for example /v1/chat/completions."""
    body: bytes
    """Sent as it is; at most MAX_BODY_BYTES."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case. Without a content-type the body is sent as application/json."""
    objective: str = ""
    """InferenceObjective whose priority the request has; "": the worker's default."""
    group: str = ""
    """Jobs that are cancelled together, for example a batch; "" for none."""
    deadline: float | None = None
    """Unix time in seconds after which the job is not sent any more; None for none."""
    submitted_at: float = 0.0
    """Unix time of acceptance, seconds."""
    attempts: int = 0
    """Attempts that failed and count against the limit. An answer that asks to come later does not count."""
    failures: tuple[Failure, ...] = ()
    """The last of them, oldest first, at most MAX_FAILURES."""

    @classmethod
    def checked(cls, **values: Any) -> "Job":
        """Return the job, its header names in lower case. Raises JobError for a value out of bounds."""
        headers = tuple((name.lower(), value) for name, value in values.pop("headers", ()))
        job = cls(headers=headers, **values)
        _check(job)
        return job

    def failed(self, at: float, cause: str) -> "Job":
        """Return the job after one more attempt that failed."""
        failures = (*self.failures, Failure(at, cause[:MAX_CAUSE_CHARS]))[-MAX_FAILURES:]
        return replace(self, attempts=self.attempts + 1, failures=failures)

    def replayed(self, at: float) -> "Job":
        """Return the job of a replayed dead letter: a new generation, without attempts and deadline.

        The generation follows from the old one, so that a replay that is done twice yields one result.
        """
        token = hashlib.sha256(f"replay {self.generation}".encode()).hexdigest()[:32]
        return replace(self, generation=token, submitted_at=at, deadline=None, attempts=0, failures=())


def _check(job: Job) -> None:
    for field, name, least in (
        ("id", job.id, 1),
        ("group", job.group, 0),
        ("objective", job.objective, 0),
    ):
        if not least <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise JobError(field, f"must be {least} to {MAX_NAME_CHARS} printable characters")
    if not _GENERATION.fullmatch(job.generation):
        raise JobError("generation", "must be 1 to 64 letters, digits, - or _")
    if len(job.path) > MAX_PATH_CHARS or not _PATH.fullmatch(job.path):
        raise JobError("path", f"must begin with / and be at most {MAX_PATH_CHARS} visible ASCII characters")
    if not is_plain_path(job.path):
        raise JobError("path", "must have no empty segment, no . or .. and no backslash")
    if len(job.body) > MAX_BODY_BYTES:
        raise JobError("body", f"has {len(job.body)} bytes, more than {MAX_BODY_BYTES}")
    if job.attempts < 0:
        raise JobError("attempts", "must not be negative")
    _check_headers(job.headers)


def _check_headers(headers: tuple[tuple[str, str], ...]) -> None:
    if (
        len(headers) > MAX_HEADERS
        or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES
    ):
        raise JobError("headers", f"at most {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes")
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise JobError("headers", f"{name[:128]!r} is no header name")
        if name in OWN_HEADERS:
            raise JobError("headers", f"{name} is set by the subscriber; leave it out")
        if not _HEADER_VALUE.fullmatch(value):
            raise JobError("headers", f"{name} has a character that no header may have")


class Cause(Enum):
    """Why a job ended without an answer that is worth keeping; NONE: it was answered."""

    NONE = ""
    EXPIRED = "expired"
    """Its deadline or the longest age of a job has passed."""
    CANCELLED = "cancelled"
    """Its group was cancelled."""
    REFUSED = "refused"
    """The gateway answered with an error that another attempt cannot change."""
    EXHAUSTED = "exhausted"
    """Every attempt that it may have failed."""
    POISON = "poison"
    """It was received too often without an end: the subscriber may have died of it."""
    MALFORMED = "malformed"
    """The queue held something that is no job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The one end of a job. A job that goes to the dead letters has a result as well, with the cause."""

    job_id: str
    generation: str
    group: str = ""
    status: int = 0
    """HTTP status of the last answer; 0 when there was none."""
    content_type: str = ""
    body: bytes = b""
    cause: Cause = Cause.NONE
    detail: str = ""
    """A sentence for people, with a cause."""
    attempts: int = 0
    """Attempts that failed before."""
    submitted_at: float = 0.0
    finished_at: float = 0.0
    """Unix time, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that is not tried any more, or a message that is none."""

    key: str
    """Names it in `headroom-batch dead`; unique in its queue."""
    cause: Cause
    detail: str
    at: float
    """Unix time, seconds."""
    job: Job | None
    """None for what cannot be read as a job; `raw` has it then."""
    raw: bytes = b""
    deliveries: int = 0
    """How often the queue handed it out."""


def dead_letter_key(job: Job) -> str:
    """Return the key of a job's dead letter: 16 hexadecimal digits that follow from id and generation."""
    return hashlib.sha256(f"{job.id}\0{job.generation}".encode()).hexdigest()[:16]
