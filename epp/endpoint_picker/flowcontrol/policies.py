"""The contracts of the queue's policies: order within a flow, fairness between flows, ceilings of bands.

Like every plugin they do no I/O. The queue passes the clock; policies keep no clock of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from endpoint_picker.flowcontrol.queued import Flow, Queued
from endpoint_picker.scheduling.plugin import Plugin


class OrderingPolicy(Plugin):
    """Orders the requests of one flow."""

    __slots__ = ()

    @abstractmethod
    def key(self, queued: Queued, ttl: float) -> float:
        """Return the request's place; smaller goes first, equal ones go in order of arrival.

        `ttl` is the longest wait in its band, seconds; infinite without a limit.
        """


class Lanes(ABC):
    """The backlogged flows of one band, as one fairness policy sees them.

    A flow is *active* while it has a request that may be dispatched. The queue calls `activate` and
    `deactivate` as that changes, and `changed` when an active flow has another head.
    """

    __slots__ = ()

    compares_heads: bool = False
    """Whether `changed` does anything."""

    @abstractmethod
    def activate(self, flow: Flow, now: float) -> None:
        """Add a flow that became active."""

    @abstractmethod
    def deactivate(self, flow: Flow, now: float) -> None:
        """Remove a flow that is active no longer."""

    def changed(self, flow: Flow) -> None:  # noqa: B027 - only policies that compare heads need it
        """Note that an active flow has another head."""

    @abstractmethod
    def select(self, now: float) -> Flow | None:
        """Return the flow whose head goes next; None when no flow is active. It changes no order."""

    def served(self, flow: Flow, tokens: float, now: float) -> None:  # noqa: B027 - as above
        """Note that a flow was served `tokens` weighted tokens; negative when an estimate was too high.

        Called at the dispatch with the estimate, and with the difference when the usage is known. The flow
        need not be active.
        """

    def turned(self, flow: Flow) -> None:  # noqa: B027 - as above
        """Note that the head of the selected flow was dispatched; called before `served`."""

    def remembers(self, flow: Flow, now: float) -> bool:
        """Tell whether an idle flow has a standing that must outlast its idleness."""
        return False

    @abstractmethod
    def __len__(self) -> int:
        """Return how many flows are active."""


class FairnessPolicy(Plugin):
    """Chooses between the flows of a band."""

    __slots__ = ()

    completion_weight: float = 2.0
    """Weight of a completion token in the amount passed to `Lanes.served`; a prompt token weighs 1."""

    @abstractmethod
    def lanes(self) -> Lanes:
        """Return the state of one band."""


class UsageLimitPolicy(Plugin):
    """Sets the saturation from which each band is held back."""

    __slots__ = ()

    @abstractmethod
    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Return the ceiling of each band; `priorities` are those of all bands, the highest first.

        A band's requests go while the saturation is below its ceiling.
        """
