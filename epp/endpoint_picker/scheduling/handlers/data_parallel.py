"""data-parallel-profile-handler: names the rank in a header and sends the request to the pod's first port."""

from collections.abc import Sequence

from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import PluginParams, RandomSource
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import ProfileHandler


class DataParallelParams(PluginParams):
    """Parameters of data-parallel-profile-handler."""

    primary_port: int = Field(default=8000, ge=1, le=65535)
    """Port of the proxy in each pod that passes requests on to the ranks."""


class DataParallelProfileHandler(ProfileHandler):
    """Runs the one profile. The header x-data-parallel-host-port has the address of the rank that it chose.

    The destination is the same address with primaryPort. It has no fallbacks: the header would name a rank of
    another pod there.
    """

    __slots__ = ("_port",)
    type_name = "data-parallel-profile-handler"
    params_type = DataParallelParams

    def __init__(self, params: DataParallelParams) -> None:
        self._port = params.primary_port

    @override
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Run the profile, and note the port that requests enter by."""
        hold = profiles[0].run(request, candidates, table, rng)
        if hold is not None:
            return hold
        if not candidates.order.size:
            return ()
        candidates.order = candidates.order[:1]
        candidates.entry_port = self._port
        return (candidates,)
