"""The answer that a client gets in place of a model server's: status, headers and body. Pure.

The body is in the caller's dialect, so that its client library shows the sentence: OpenAI's `error` object,
or Anthropic's. A gRPC call gets a gRPC status, which the proxy makes of the reply.
"""

import json
from collections.abc import Mapping
from typing import Final

from endpoint_picker.extproc.headers import DROPPED_REASON, RequestHeaders
from endpoint_picker.outcomes import Outcome
from ext_proc import wire
from lean_grpc.status import StatusCode

#: Longest sentence, in characters: a client must not get its own body back in an error.
MAX_MESSAGE: Final = 1000
#: Refusals that say something about the request and nothing about the pool: it was not dropped.
_ABOUT_THE_REQUEST: Final = (Outcome.BAD_REQUEST, Outcome.NOT_CACHED, Outcome.UNREAD_ENCODING)
_JSON: Final = ("content-type", "application/json")
#: `error.type` by status, as each API's own server names it; the second table is Anthropic's.
_OPENAI_TYPES: Final[Mapping[int, str]] = {429: "rate_limit_error"}
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GRPC_CODES: Final[Mapping[int, StatusCode]] = {
    400: StatusCode.INVALID_ARGUMENT,
    404: StatusCode.NOT_FOUND,
    412: StatusCode.FAILED_PRECONDITION,
    413: StatusCode.RESOURCE_EXHAUSTED,
    415: StatusCode.INVALID_ARGUMENT,
    431: StatusCode.RESOURCE_EXHAUSTED,
    429: StatusCode.RESOURCE_EXHAUSTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}


def refusal_reply(
    headers: RequestHeaders | None, outcome: Outcome, message: str, retry_after: int | None, param: str | None
) -> bytes:
    """Return the immediate reply of a refusal.

    `headers` are the request's, None before they came. `retry_after` is in seconds; None: the outcome's own.
    `param` is the field of the body that is wrong, None where there is none.
    """
    message = message[:MAX_MESSAGE]
    status, reason = outcome.http_status, outcome.value
    # The proxy tells the picker's details from its own by their hyphens.
    details = reason if "-" in reason else f"request-{reason}"
    retry_after = outcome.retry_after if retry_after is None else retry_after
    added = [] if outcome in _ABOUT_THE_REQUEST else [(DROPPED_REASON, reason)]
    if retry_after:
        added.append(("retry-after", str(retry_after)))
    if headers is not None and headers.content_type.startswith("application/grpc"):
        code = _GRPC_CODES.get(status, StatusCode.INTERNAL)
        return wire.immediate_reply(status, added, message, details, grpc_status=code)
    if headers is not None and is_anthropic(headers):
        body = _anthropic(status, message, headers.request_id)
    else:
        body = _openai(status, message, reason, param)
    text = json.dumps(body, separators=(",", ":"))
    return wire.immediate_reply(status, [_JSON, *added], text, details)


def is_anthropic(headers: RequestHeaders) -> bool:
    """Tell whether the caller speaks Anthropic's API: by the path, or by the version header."""
    return "messages" in headers.path.split("/") or "anthropic-version" in headers.all


def _openai(status: int, message: str, reason: str, param: str | None) -> dict[str, object]:
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": reason}}


def _anthropic(status: int, message: str, request_id: str) -> dict[str, object]:
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    answer: dict[str, object] = {"type": "error", "error": {"type": kind, "message": message}}
    if request_id:
        answer["request_id"] = request_id
    return answer
