"""single-profile-handler: runs the one profile for every request."""

from collections.abc import Sequence

from typing_extensions import override

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import RandomSource
from endpoint_picker.scheduling.profile import Profile
from endpoint_picker.scheduling.profile_handler import ProfileHandler


class SingleProfileHandler(ProfileHandler):
    """What the one profile chooses is the answer."""

    __slots__ = ()
    type_name = "single-profile-handler"

    @override
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Run the profile."""
        hold = profiles[0].run(request, candidates, table, rng)
        if hold is not None:
            return hold
        return (candidates,) if candidates.order.size else ()
