"""always-disagg-pd-decider: every prompt is computed by a prefill server."""

from typing_extensions import override

from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.decider import Decider


class AlwaysPdDecider(Decider):
    """Always yes."""

    __slots__ = ()
    type_name = "always-disagg-pd-decider"

    @override
    def wants(self, request: InferenceRequest, decode: Candidates) -> bool:
        """Return True."""
        return True
