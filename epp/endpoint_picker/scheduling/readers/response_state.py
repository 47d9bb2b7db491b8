"""response-state-producer: the earlier response or the conversation that a request goes on with."""

from typing import ClassVar

from typing_extensions import override

from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import RequestReader
from endpoint_picker.scheduling.session import RESPONSE_STATE


class ResponseStateProducer(RequestReader):
    """Writes the request attribute ResponseState, from `previous_response_id`, `conversation` or the path."""

    __slots__ = ()
    type_name = "response-state-producer"
    writes: ClassVar[str] = RESPONSE_STATE

    @override
    def read(self, request: InferenceRequest) -> None:
        """Write the attribute."""
        if request.state:
            request.attributes[RESPONSE_STATE] = request.state
