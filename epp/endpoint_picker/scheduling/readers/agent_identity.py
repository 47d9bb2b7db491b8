"""agent-identity: the agent session that a request belongs to, from the headers that coding agents send."""

from typing import Annotated, ClassVar, Final

from pydantic import Field
from typing_extensions import override

from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import PluginParams, RequestReader

AGENT_IDENTITY: Final = "agent-identity"
#: Headers of agents, the first that a request has is read.
AGENT_HEADERS: Final = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")


class AgentIdentityParams(PluginParams):
    """Parameters of agent-identity."""

    additional_session_headers: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        default=(), max_length=32
    )
    """Request headers, in any case, that are read before the built-in ones."""


class AgentIdentity(RequestReader):
    """Writes the request attribute agent-identity, which session-affinity can read.

    The first header that is present counts: additionalSessionHeaders, then x-claude-code-session-id,
    x-session-affinity, session-id, session_id.
    """

    __slots__ = ("_headers",)
    type_name = "agent-identity"
    params_type = AgentIdentityParams
    writes: ClassVar[str] = AGENT_IDENTITY

    def __init__(self, params: AgentIdentityParams) -> None:
        self._headers = (*(each.lower() for each in params.additional_session_headers), *AGENT_HEADERS)

    @override
    def read(self, request: InferenceRequest) -> None:
        """Write the attribute."""
        for name in self._headers:
            if value := request.headers.get(name):
                request.attributes[AGENT_IDENTITY] = value
                return
