"""session-id-producer: the session that a request belongs to, from a header or a cookie."""

from typing import ClassVar, Final

from pydantic import Field, model_validator
from typing_extensions import override

from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import PluginParams, RequestReader

SESSION_ID: Final = "SessionID"


class SessionIdParams(PluginParams):
    """Parameters of session-id-producer."""

    header_name: str | None = Field(default=None, min_length=1, max_length=256)
    """Request header that holds the session, in any case."""
    cookie_name: str | None = Field(default=None, min_length=1, max_length=256)
    """Cookie that holds the session."""

    @model_validator(mode="after")
    def _one_source(self) -> "SessionIdParams":
        if (self.header_name is None) == (self.cookie_name is None):
            raise ValueError("give either headerName or cookieName")
        return self


class SessionIdProducer(RequestReader):
    """Writes the request attribute SessionID, for session-affinity; a request without one has none."""

    __slots__ = ("_cookie", "_header")
    type_name = "session-id-producer"
    params_type = SessionIdParams
    writes: ClassVar[str] = SESSION_ID

    def __init__(self, params: SessionIdParams) -> None:
        self._header = (params.header_name or "cookie").lower()
        self._cookie = params.cookie_name

    @override
    def read(self, request: InferenceRequest) -> None:
        """Write the attribute."""
        value = request.headers.get(self._header, "")
        if value and self._cookie is not None:
            value = _cookie(value, self._cookie)
        if value:
            request.attributes[SESSION_ID] = value


def _cookie(header: str, name: str) -> str:
    """Return the cookie's value, "" when the header has none of the name."""
    for part in header.split(";"):
        key, found, value = part.strip().partition("=")
        if found and key == name:
            return value.strip('"')
    return ""
