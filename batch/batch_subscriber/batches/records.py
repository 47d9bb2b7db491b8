"""Files and batches as they are kept, and as the API shows them. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final

from batch_subscriber.batches.api_errors import ApiError
from batch_subscriber.jobs import is_plain_path

#: Bounds that OpenAI's API has as well.
MAX_METADATA: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512

#: The longest completion window, seconds.
MAX_WINDOW_S: Final = 14 * 86_400
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_UNIT_S: Final = {"m": 60, "h": 3600, "d": 86_400}
_ENDPOINT: Final = re.compile(r"/v[0-9][A-Za-z0-9._~/-]{0,200}")


class Status(Enum):
    """Where a batch stands; the words are OpenAI's."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        """Whether nothing happens to the batch any more."""
        return self in (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An uploaded file, or one with the answers or errors of a batch."""

    id: str
    purpose: str
    filename: str
    size: int
    created_at: float
    expires_at: float | None = None

    def shown(self) -> dict[str, Any]:
        """Return the API's object."""
        shown = {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": int(self.created_at),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }
        return shown if self.expires_at is None else {**shown, "expires_at": int(self.expires_at)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch. Times are Unix seconds."""

    id: str
    generation: str
    """Token of this batch alone, in its jobs: a reused id finds nothing of an older batch."""
    endpoint: str
    input_file_id: str
    window: str
    status: Status = Status.VALIDATING
    metadata: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[Mapping[str, Any], ...] = ()
    total: int = 0
    put: int = 0
    """Lines that are in the queue."""
    offset: int = 0
    """Where the next line begins, bytes."""
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    outcome: Status | None = None
    """What the batch becomes when its files are written."""
    times: Mapping[str, float] = field(default_factory=dict)
    """By status: when it got there."""

    @property
    def group(self) -> str:
        """The name under which its jobs are cancelled."""
        return f"{self.id}.{self.generation[:8]}"

    @property
    def expires_at(self) -> float:
        """When what is not done is given up, Unix time."""
        return self.times["created"] + window_seconds(self.window)

    def job_id(self, line: int) -> str:
        """Return the id of the job of a line, counted from 0."""
        return f"{self.id}-{line + 1:06d}"

    def at(self, status: Status, now: float, **changes: Any) -> "Batch":
        """Return the batch after a change of its status."""
        return replace(self, status=status, times={**self.times, status.value: now}, **changes)

    def shown(self) -> dict[str, Any]:
        """Return the API's object."""
        time = {name: int(at) for name, at in self.times.items()}
        is_shown = self.status.is_end
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.window,
            "status": self.status.value,
            "output_file_id": self.output_file_id if is_shown else None,
            "error_file_id": self.error_file_id if is_shown else None,
            "created_at": time["created"],
            "in_progress_at": time.get("in_progress"),
            "expires_at": int(self.expires_at),
            "finalizing_at": time.get("finalizing"),
            "completed_at": time.get("completed"),
            "failed_at": time.get("failed"),
            "expired_at": time.get("expired"),
            "cancelling_at": time.get("cancelling"),
            "cancelled_at": time.get("cancelled"),
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": dict(self.metadata) or None,
        }

    def kept(self) -> str:
        """Return the JSON that `read_batch` reads."""
        return json.dumps({**asdict(self), "status": self.status.value, "outcome": _value(self.outcome)})


def _value(status: Status | None) -> str | None:
    return None if status is None else status.value


def read_batch(text: str) -> Batch:
    """Return the batch that `Batch.kept` wrote."""
    values = json.loads(text)
    outcome = values.pop("outcome")
    return Batch(
        status=Status(values.pop("status")),
        outcome=None if outcome is None else Status(outcome),
        errors=tuple(values.pop("errors")),
        **values,
    )


def window_seconds(window: str) -> int:
    """Return the seconds of a completion window such as 24h. Raises ApiError."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNIT_S[found[2]] if found else 0
    if not 0 < seconds <= MAX_WINDOW_S:
        raise ApiError(
            400,
            f"Invalid completion_window {window[:20]!r}: write it as 30m, 24h or 7d, at most 14d",
            param="completion_window",
        )
    return seconds


def new_batch(asked: object, *, batch_id: str, generation: str, now: float) -> Batch:
    """Return the batch that a request's JSON asks for. Raises ApiError."""
    if not isinstance(asked, dict):
        raise ApiError(400, "The body must be a JSON object")
    if unknown := sorted(
        asked.keys() - {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}
    ):
        raise ApiError(400, f"Unknown parameter: {unknown[0][:100]!r}", param=unknown[0][:100])
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(asked.get(name), str):
            raise ApiError(400, f"Missing required parameter: {name!r}, a string", param=name)
    endpoint = asked["endpoint"]
    if not _ENDPOINT.fullmatch(endpoint) or endpoint.endswith("/") or not is_plain_path(endpoint):
        raise ApiError(
            400, f"Invalid endpoint {endpoint[:100]!r}: a path such as /v1/chat/completions", param="endpoint"
        )
    window_seconds(asked["completion_window"])
    return Batch(
        id=batch_id,
        generation=generation,
        endpoint=endpoint,
        input_file_id=asked["input_file_id"],
        window=asked["completion_window"],
        metadata=_metadata(asked.get("metadata") or {}),
        times={"created": now},
    )


def _metadata(asked: object) -> dict[str, str]:
    if not isinstance(asked, dict) or len(asked) > MAX_METADATA:
        raise ApiError(400, f"metadata must be an object of at most {MAX_METADATA} strings", param="metadata")
    for key, value in asked.items():
        if not isinstance(value, str) or len(value) > MAX_METADATA_VALUE or len(key) > MAX_METADATA_KEY:
            raise ApiError(
                400,
                f"metadata: keys have at most {MAX_METADATA_KEY} characters, values are strings of at most "
                f"{MAX_METADATA_VALUE}",
                param="metadata",
            )
    return asked
