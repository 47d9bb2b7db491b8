"""header-profile-handler: runs the profile that a request header names."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import PluginParams, RandomSource
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import MAX_PROFILES, ProfileHandler


class HeaderProfileParams(PluginParams):
    """Parameters of header-profile-handler."""

    header_name: str = Field(default="EPP-Profile", min_length=1)
    """Request header, in any case."""
    default_profile: str = Field(default="decode", min_length=1)
    """Profile of a request without the header."""


class HeaderProfileHandler(ProfileHandler):
    """Runs one profile; a lone one always. A header that names no profile leaves no endpoint (503)."""

    __slots__ = ("_default", "_header")
    type_name = "header-profile-handler"
    params_type = HeaderProfileParams
    most_profiles: ClassVar[int] = MAX_PROFILES

    def __init__(self, params: HeaderProfileParams) -> None:
        self._header = params.header_name.lower()
        self._default = params.default_profile

    @override
    def fault_of(self, profiles: Sequence[str]) -> str:
        """Demand the default profile where there are several."""
        if len(profiles) > 1 and self._default not in profiles:
            return (
                f'defaultProfile is "{self._default}", which is no profile; there are: {", ".join(profiles)}'
            )
        return super().fault_of(profiles)

    @override
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Run the profile that the header names."""
        chosen = profiles[0]
        if len(profiles) > 1:
            wanted = request.headers.get(self._header) or self._default
            for chosen in profiles:
                if chosen.name == wanted:
                    break
            else:
                return ()
        hold = chosen.run(request, candidates, table, rng)
        if hold is not None:
            return hold
        return (candidates,) if candidates.order.size else ()
