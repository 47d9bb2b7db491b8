"""What a client gets when Envoy itself answers: an error object in the caller's dialect. Pure.

A reply of the picker also passes here, and stays as it is: Envoy knows it by its response code details, which
are the picker's reason.
"""

from typing import Any, Final

from inference_operator.core.desired.envoy_config import Config, extension

#: `error.code` of these replies.
CODE: Final = "proxy-error"
#: Seconds after which a client may ask again, where no model server or no picker is there.
RETRY_AFTER_S: Final = 1
_MESSAGE: Final = "The proxy answered in place of a model server: %RESPONSE_CODE_DETAILS%. %LOCAL_REPLY_BODY%"
#: The picker's reasons are words joined by hyphens, Envoy's by underscores. Other pickers may give none.
_ENVOYS_OWN: Final = r"!response.code_details.matches('^([a-z]+(-[a-z]+)+)?\\z')"
#: A gRPC call gets Envoy's gRPC status.
_TYPE: Final = "request.headers['content-type']"
_NO_GRPC: Final = f"(!('content-type' in request.headers) || !{_TYPE}.startsWith('application/grpc'))"
_PATH: Final = "request.url_path"
_BY_PATH: Final = f"{_PATH}.endsWith('/messages') || {_PATH}.contains('/messages/')"
_ANTHROPIC: Final = f"({_BY_PATH} || 'anthropic-version' in request.headers)"
#: Condition on the status, and the types of error in Anthropic's and OpenAI's form.
_TYPES: Final = (
    ("response.code == 503", "overloaded_error", "server_error"),
    ("response.code >= 500", "api_error", "server_error"),
    ("response.code == 413", "request_too_large", "invalid_request_error"),
    ("response.code >= 400", "invalid_request_error", "invalid_request_error"),
)


def local_reply_config() -> Config:
    """Return the connection manager's `local_reply_config`. The first mapper that fits is taken."""
    mappers = []
    for condition, anthropic, openai in _TYPES:
        retry = condition.endswith("503")
        mappers.append(_mapper(f"{condition} && {_ANTHROPIC}", _anthropic(anthropic), retry=retry))
        mappers.append(_mapper(condition, _openai(openai), retry=retry))
    return {"mappers": mappers}


def _anthropic(kind: str) -> dict[str, Any]:
    error = {"type": kind, "message": _MESSAGE}
    return {"type": "error", "error": error, "request_id": "%REQ(X-REQUEST-ID)%"}


def _openai(kind: str) -> dict[str, Any]:
    return {"error": {"message": _MESSAGE, "type": kind, "param": None, "code": CODE}}


def _mapper(condition: str, body: dict[str, Any], *, retry: bool) -> Config:
    rule = extension(
        "envoy.access_loggers.extension_filters.cel",
        "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
        expression=f"{_ENVOYS_OWN} && {_NO_GRPC} && {condition}",
    )
    mapper: Config = {"filter": {"extension_filter": rule}, "body_format_override": {"json_format": body}}
    if retry:
        header = {"key": "retry-after", "value": str(RETRY_AFTER_S)}
        action = "OVERWRITE_IF_EXISTS_OR_ADD"
        mapper["headers_to_add"] = [{"header": header, "append_action": action}]
    return mapper
