"""The contract of profile handlers: plugins that say which profiles run for a request."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import Plugin, RandomSource
from endpoint_picker.scheduling.profile import Profile

#: Profiles of a configuration.
MAX_PROFILES: Final = 64


class ProfileHandler(Plugin):
    """Says which profiles run for a request and joins what they chose."""

    __slots__ = ()

    most_profiles: ClassVar[int] = 1
    """Profiles that it can run."""

    def fault_of(self, profiles: Sequence[str]) -> str:
        """Return why it cannot run the profiles of these names, "" when it can."""
        if len(profiles) > self.most_profiles:
            most = "one profile" if self.most_profiles == 1 else f"{self.most_profiles} profiles"
            return f"more than {most} is not supported by {self.type_name}"
        return ""

    @abstractmethod
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Return the candidates of each profile that ran, with their order: the primary's first.

        The first of each is reserved; the first's order is the destination. Empty: no endpoint may serve.
        """
