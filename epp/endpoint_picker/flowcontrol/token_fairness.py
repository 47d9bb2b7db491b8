"""token-fairness-policy: flows share served tokens, whatever the number and length of their requests. Pure.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a flow's
counter grows with the tokens that it is served, and the flow with the smallest counter goes next. A flow
that becomes active is lifted to the smallest counter of the active flows, so that idleness earns no credit.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Annotated, ClassVar, Final

from pydantic import Field
from typing_extensions import override

from endpoint_picker.flowcontrol.policies import FairnessPolicy, Lanes
from endpoint_picker.flowcontrol.queued import Flow
from endpoint_picker.scheduling.plugin import PluginParams

#: Seconds for which an idle flow's excess over the others is remembered.
REMEMBERED_S: Final = 300.0
_SLACK: Final = 64

Weight = Annotated[float, Field(gt=0.0, le=1e6)]


class TokenFairnessParams(PluginParams):
    """Parameters of token-fairness-policy."""

    completion_weight: float = Field(default=2.0, ge=0.0, le=1000.0)
    """Tokens of a prompt that one token of an answer counts as."""
    weights: dict[str, Weight] = Field(default_factory=dict, max_length=10_000)
    """Fairness id to its part relative to 1, the part of an id that is not listed."""


class TokenFairnessPolicy(FairnessPolicy):
    """The flow that was served the fewest tokens over its weight; only while it waits does a flow gain.

    A dispatch counts the prompt and the expected answer; the difference is corrected when the usage is
    known. The expected answer is the mean of the flow's answers, at most what the request allows.
    """

    __slots__ = ("_weights", "completion_weight")
    type_name: ClassVar[str] = "token-fairness-policy"
    params_type = TokenFairnessParams

    def __init__(self, params: TokenFairnessParams) -> None:
        self.completion_weight = params.completion_weight
        self._weights = params.weights

    @override
    def lanes(self) -> Lanes:
        """Return the state of one band."""
        return TokenLanes(self._weights)


class TokenLanes(Lanes):
    """A heap of the active flows' counters; `Flow.standing` is the counter, `Flow.turn` marks its entry."""

    __slots__ = ("_active", "_floor", "_heap", "_turns", "_weights")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._heap: list[tuple[float, str, int, Flow]] = []
        self._active: set[Flow] = set()
        self._turns = 0
        """Entries made: no two have one number, so that the heap never compares flows."""
        self._floor = 0.0
        """The smallest counter of the active flows when one was last activated; never falls."""

    @override
    def __len__(self) -> int:
        return len(self._active)

    @override
    def activate(self, flow: Flow, now: float) -> None:
        self._lift()
        flow.standing = max(flow.standing, self._floor)
        self._active.add(flow)
        self._enter(flow)

    @override
    def deactivate(self, flow: Flow, now: float) -> None:
        self._active.discard(flow)
        flow.turn = 0
        if not self._active:
            # The last flow to leave sets the floor: one that comes next starts beside it.
            self._floor = max(self._floor, flow.standing)

    @override
    def select(self, now: float) -> Flow | None:
        heap = self._heap
        while heap:
            _counter, _id, turn, flow = heap[0]
            if flow.turn == turn and flow in self._active:
                return flow
            heappop(heap)
        return None

    @override
    def served(self, flow: Flow, tokens: float, now: float) -> None:
        flow.standing += tokens / self._weights.get(flow.id, 1.0)
        if flow in self._active:
            self._enter(flow)

    @override
    def remembers(self, flow: Flow, now: float) -> bool:
        self._lift()
        return flow.standing > self._floor and now - flow.idle_since < REMEMBERED_S

    def _lift(self) -> None:
        flow = self.select(0.0)
        if flow is not None and flow.standing > self._floor:
            self._floor = flow.standing

    def _enter(self, flow: Flow) -> None:
        """Make a new entry, which ends the flow's earlier one."""
        self._turns += 1
        flow.turn = self._turns
        if len(self._heap) > 2 * len(self._active) + _SLACK:
            self._heap = [each for each in self._heap if each[3].turn == each[2] and each[3] in self._active]
            heapify(self._heap)
        heappush(self._heap, (flow.standing, flow.id, flow.turn, flow))
