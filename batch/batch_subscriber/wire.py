"""Jobs, results and dead letters as JSON. Pure."""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from batch_subscriber.errors import JobError
from batch_subscriber.jobs import MAX_CAUSE_CHARS, MAX_FAILURES, Cause, DeadLetter, Failure, Job, Result

#: Most bytes of a job as JSON, so that it fits into one Pub/Sub message (10 MB).
MAX_WIRE_BYTES: Final = 9_900_000
#: Of them those of the failures that a job collects; a new job has to leave them free.
FAILURE_BYTES: Final = 50_000


def encode_job(job: Job) -> bytes:
    """Return the JSON of a job. Raises JobError for one that is too large, which a job never grows to be."""
    data = json.dumps(_values(job), ensure_ascii=False, separators=(",", ":")).encode()
    most = MAX_WIRE_BYTES if job.failures else MAX_WIRE_BYTES - FAILURE_BYTES
    if len(data) > most:
        raise JobError("body", f"the job has {len(data)} bytes as JSON, more than {most}")
    return data


def _values(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {"id": job.id, "generation": job.generation, "path": job.path}
    for field in ("objective", "group", "deadline", "submitted_at", "attempts"):
        if value := getattr(job, field):
            values[field] = value
    if job.headers:
        values["headers"] = [list(pair) for pair in job.headers]
    if job.failures:
        values["failures"] = [list(failure) for failure in job.failures]
    values.update(_body_values(job.body))
    return values


def decode_job(data: bytes, *, generation: str = "", submitted_at: float = 0.0) -> Job:
    """Return the job of its JSON.

    `id`, `path` and `body` are needed; `body` may be text or a JSON object, which is sent in its shortest
    form. `generation` and `submitted_at` are what a job gets that names none: the message's own. Raises
    JobError.
    """
    if len(data) > MAX_WIRE_BYTES:
        raise JobError("body", f"the job has {len(data)} bytes as JSON, more than {MAX_WIRE_BYTES}")
    values = _object(data)
    unknown = sorted(values.keys() - _WIRE_FIELDS)
    if unknown:
        raise JobError(unknown[0][:64], "is no field of a job")
    try:
        return Job.checked(
            id=_text(values, "id"),
            generation=_text(values, "generation", generation),
            path=_text(values, "path"),
            body=_body(values),
            headers=_headers(values),
            objective=_text(values, "objective", ""),
            group=_text(values, "group", ""),
            deadline=_number(values, "deadline", None),
            submitted_at=_number(values, "submitted_at", submitted_at) or 0.0,
            attempts=int(_number(values, "attempts", 0) or 0),
            failures=_failures(values),
        )
    except UnicodeEncodeError as lone:
        raise JobError("job", "has a lone surrogate, which is no text") from lone


_WIRE_FIELDS: Final = frozenset(
    {
        "id", "generation", "path", "body", "body_base64", "headers", "objective", "group", "deadline",
        "submitted_at", "attempts", "failures",
    }
)  # fmt: skip


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as no_json:
        raise JobError("job", "is no JSON") from no_json
    if not isinstance(values, dict):
        raise JobError("job", "is no JSON object")
    return values


def _text(values: Mapping[str, Any], field: str, otherwise: str | None = None) -> str:
    value = values.get(field, otherwise)
    if not isinstance(value, str):
        raise JobError(field, "is missing" if value is None else "must be a string")
    return value


def _number(values: Mapping[str, Any], field: str, otherwise: float | None) -> float | None:
    value = values.get(field)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise JobError(field, "must be a number, 0 or more")
    return float(value)


def _headers(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = values.get("headers", [])
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        for pair in pairs
    ):
        raise JobError("headers", "must be an object of strings, or a list of pairs")
    return [(pair[0], pair[1]) for pair in pairs]


def _failures(values: Mapping[str, Any]) -> tuple[Failure, ...]:
    try:
        given = [Failure(float(at), str(cause)[:MAX_CAUSE_CHARS]) for at, cause in values.get("failures", [])]
    except (TypeError, ValueError) as wrong:
        raise JobError("failures", "must be a list of [time, cause]") from wrong
    return tuple(given[-MAX_FAILURES:])


def _body_values(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _body(values: Mapping[str, Any]) -> bytes:
    if "body_base64" in values:
        try:
            return base64.b64decode(_text(values, "body_base64"), validate=True)
        except ValueError as wrong:
            raise JobError("body_base64", "is no base64") from wrong
    body = values.get("body")
    if isinstance(body, dict):
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return _text(values, "body").encode()


def encode_result(result: Result) -> bytes:
    """Return the JSON of a result, one line."""
    values: dict[str, Any] = {
        "job_id": result.job_id,
        "generation": result.generation,
        "group": result.group,
        "status": result.status,
        "content_type": result.content_type,
        "cause": result.cause.value,
        "detail": result.detail,
        "attempts": result.attempts,
        "submitted_at": result.submitted_at,
        "finished_at": result.finished_at,
        **_body_values(result.body),
    }
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def decode_result(data: bytes) -> Result:
    """Return the result that `encode_result` wrote. Raises ValueError for anything else."""
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError("a result is a JSON object")
    try:
        body = _body(values)
        cause = Cause(values["cause"])
        plain = {field: values[field] for field in _RESULT_FIELDS}
    except (KeyError, JobError) as wrong:
        msg = f"no result: {wrong}"
        raise ValueError(msg) from wrong
    return Result(body=body, cause=cause, **plain)


_RESULT_FIELDS: Final = (
    "job_id", "generation", "group", "status", "content_type", "detail", "attempts", "submitted_at",
    "finished_at",
)  # fmt: skip


def encode_letter(letter: DeadLetter) -> bytes:
    """Return the JSON of a dead letter, one line."""
    values: dict[str, Any] = {
        "key": letter.key,
        "cause": letter.cause.value,
        "detail": letter.detail,
        "at": letter.at,
        "deliveries": letter.deliveries,
    }
    if letter.job is not None:
        values["job"] = encode_job(letter.job).decode()
    else:
        values["raw_base64"] = base64.b64encode(letter.raw).decode()
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def decode_letter(data: bytes) -> DeadLetter:
    """Return the dead letter that `encode_letter` wrote. Raises ValueError for anything else."""
    try:
        values = _object(data)
        job = None if "raw_base64" in values else decode_job(_text(values, "job").encode())
        return DeadLetter(
            key=_text(values, "key"),
            cause=Cause(values["cause"]),
            detail=_text(values, "detail"),
            at=float(values["at"]),
            job=job,
            raw=base64.b64decode(values.get("raw_base64", "")),
            deliveries=int(values["deliveries"]),
        )
    except (JobError, KeyError, TypeError) as wrong:
        msg = f"no dead letter: {wrong}"
        raise ValueError(msg) from wrong
