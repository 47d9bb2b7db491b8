"""Lines of a batch's files: what is asked for, and what came of it. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from batch_subscriber.errors import JobError
from batch_subscriber.jobs import MAX_BODY_BYTES, Cause, Job, Result

#: Bounds of an input file; OpenAI's API has the first one, too.
MAX_LINES: Final = 50_000
MAX_LINE_BYTES: Final = MAX_BODY_BYTES + 4096
MAX_CUSTOM_ID: Final = 512
#: Faults of a file that are named; a file with more is given up there.
MAX_FAULTS: Final = 100

_FIELDS: Final = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a line, counted from 1; without a line, with the file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def shown(self) -> dict[str, Any]:
        """Return the API's object."""
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of an input file."""

    custom_id: str
    url: str
    body: bytes
    """JSON in its shortest form."""


def read_line(line: bytes) -> Asked:
    """Return the request of a line. Raises JobError."""
    if len(line) > MAX_LINE_BYTES:
        raise JobError("line", f"has {len(line)} bytes, more than {MAX_LINE_BYTES}")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as wrong:
        raise JobError("line", "is no JSON") from wrong
    if not isinstance(values, dict):
        raise JobError("line", "is no JSON object")
    if unknown := sorted(values.keys() - _FIELDS):
        raise JobError(unknown[0][:64], "is no field of a request; there are custom_id, method, url and body")
    custom_id = values.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise JobError("custom_id", f"must be a string of 1 to {MAX_CUSTOM_ID} characters")
    if values.get("method") != "POST":
        raise JobError("method", 'must be "POST"')
    url, body = values.get("url"), values.get("body")
    if not isinstance(url, str):
        raise JobError("url", "must be a string such as /v1/chat/completions")
    if not isinstance(body, dict):
        raise JobError("body", "must be a JSON object")
    if body.get("stream"):
        raise JobError("body.stream", "a batch has no streams; leave it out")
    try:
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as wrong:
        raise JobError("body", "has a number or text that JSON cannot hold") from wrong
    if len(data) > MAX_BODY_BYTES:
        raise JobError("body", f"has {len(data)} bytes, more than {MAX_BODY_BYTES}")
    return Asked(custom_id, url, data)


def check_file(lines: Iterable[bytes], endpoint: str, max_lines: int = MAX_LINES) -> tuple[int, list[Fault]]:
    """Return how many requests a file has, and what is wrong with it; blank lines are none.

    `endpoint` is the path that every request must name; "" takes that of the first one.
    """
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        count += 1
        if count > max_lines:
            faults.append(
                Fault("too_many_requests", f"The file has more than {max_lines} requests; split it")
            )
            break
        if len(faults) >= MAX_FAULTS:
            break
        try:
            asked = read_line(line)
        except JobError as wrong:
            faults.append(
                Fault(f"invalid_{_word(wrong.field)}", f"{wrong.field}: {wrong.reason}", number, wrong.field)
            )
            continue
        endpoint = endpoint or asked.url
        if asked.url != endpoint:
            faults.append(
                Fault(
                    "mismatched_url",
                    f"url is {asked.url[:100]!r}, the batch's endpoint {endpoint!r}",
                    number,
                    "url",
                )
            )
        elif (first := seen.setdefault(asked.custom_id, number)) != number:
            message = f"custom_id {asked.custom_id[:100]!r} is that of line {first}, too"
            faults.append(Fault("duplicate_custom_id", message, number, "custom_id"))
    if not count:
        faults.append(Fault("empty_file", "The file has no requests"))
    return count, faults


def _word(field: str) -> str:
    return "json_line" if field == "line" else "".join(c if c.isalnum() else "_" for c in field)


def job_of(
    asked: Asked,
    *,
    job_id: str,
    generation: str,
    group: str,
    deadline: float,
    now: float,
    objective: str = "",
) -> Job:
    """Return the job of a request."""
    return Job(
        id=job_id,
        generation=generation,
        path=asked.url,
        body=asked.body,
        objective=objective,
        group=group,
        deadline=deadline,
        submitted_at=now,
    )


def is_success(result: Result) -> bool:
    """Tell whether a result belongs into the output file rather than the error file."""
    return result.cause is Cause.NONE and 200 <= result.status < 300


#: Codes of errors, and what they say unless the result has a sentence of its own.
_CODES: Final[Mapping[Cause, tuple[str, str]]] = {
    Cause.EXPIRED: ("batch_expired", "This request was not done before the completion window ended"),
    Cause.CANCELLED: ("batch_cancelled", "This request was not done before the batch was cancelled"),
    Cause.REFUSED: ("request_refused", "The model server refused this request"),
    Cause.EXHAUSTED: ("attempts_exhausted", "Every attempt at this request failed"),
    Cause.POISON: ("attempts_exhausted", "This request was tried too often without an end"),
    Cause.MALFORMED: ("request_refused", "The queue could not read this request"),
}


def outcome_line(line_id: str, custom_id: str, result: Result | None, missing: Cause) -> bytes:
    """Return the line of an output or error file; `missing` says why there is no result."""
    cause = missing if result is None else result.cause
    response = error = None
    if result is not None and result.status:
        response = {"status_code": result.status, "request_id": line_id, "body": _json_or_text(result.body)}
    if cause is not Cause.NONE and (response is None or cause is not Cause.REFUSED):
        code, message = _CODES[cause]
        error = {"code": code, "message": result.detail if result is not None and result.detail else message}
    values = {"id": f"batch_req_{line_id}", "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _json_or_text(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
