"""The contract of profile handlers: plugins that choose the profiles that run for a request."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.decision import Decision
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import Plugin, RandomSource
from endpoint_picker.scheduling.profile import Profile

#: Most profiles of a configuration.
MAX_PROFILES: Final = 64


class ProfileHandler(Plugin):
    """Chooses the profiles that run for a request and joins their results."""

    __slots__ = ()

    most_profiles: ClassVar[int] = 1
    """Most profiles that it can run."""

    def fault_of(self, profiles: Sequence[str]) -> str:
        """Return why the handler cannot run profiles of these names; "" when it can."""
        if len(profiles) > self.most_profiles:
            most = "one profile" if self.most_profiles == 1 else f"{self.most_profiles} profiles"
            return f"more than {most} is not supported by {self.type_name}"
        return ""

    @property
    def refers_to(self) -> Mapping[str, str]:
        """Return the plugins that its parameters name: the parameter's path to the plugin's name."""
        return {}

    def take(self, parameter: str, plugin: Plugin) -> str:
        """Take the plugin that a parameter names; return why it cannot be that, "" when it can."""
        return ""

    def readers_of(self, profile: str) -> Iterable[Plugin]:
        """Return the plugins that read the profile's candidates after it ran; what they consume is made."""
        return ()

    def stage_of(self, profile: str) -> str:
        """Return the name of the stage that the profile chooses an endpoint for; "" without stages."""
        return ""

    def complete(
        self, decision: Decision, chosen: Sequence[Candidates], table: EndpointTable, prompt_tokens: int
    ) -> None:
        """Add headers, and say which tokens each reservation holds; called when several profiles ran.

        `decision.reservations` are those of `chosen`, in its order, each with the uncached part of the
        prompt. None is reserved yet.
        """

    @abstractmethod
    def schedule(
        self,
        request: InferenceRequest,
        candidates: Candidates,
        table: EndpointTable,
        rng: RandomSource,
        profiles: Sequence[Profile],
    ) -> Sequence[Candidates] | Hold:
        """Return the candidates of each profile that ran, with their order: the primary profile's first.

        The scheduler reserves the best endpoint of each: the primary's until the end, the others' until the
        first byte. The order of the primary profile is the destination. Empty: no endpoint may serve.
        """
