"""The fairness policies that count no tokens: the best head over all flows, and turns. Pure."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import ClassVar, Final

from typing_extensions import override

from endpoint_picker.flowcontrol.policies import FairnessPolicy, Lanes
from endpoint_picker.flowcontrol.queued import Flow

#: A heap of flows is rebuilt when it has more than twice the active flows plus this many entries.
_SLACK: Final = 64


class GlobalStrictFairnessPolicy(FairnessPolicy):
    """No fairness: the flow whose head is first by the band's ordering, as if there were one flow."""

    __slots__ = ()
    type_name: ClassVar[str] = "global-strict-fairness-policy"

    @override
    def lanes(self) -> Lanes:
        """Return the state of one band."""
        return HeadLanes()


class RoundRobinFairnessPolicy(FairnessPolicy):
    """The flows with waiting requests take turns, a request each."""

    __slots__ = ()
    type_name: ClassVar[str] = "round-robin-fairness-policy"

    @override
    def lanes(self) -> Lanes:
        """Return the state of one band."""
        return TurnLanes()


class HeadLanes(Lanes):
    """A heap of the flows' heads. Entries of earlier heads stay until they reach its top."""

    __slots__ = ("_active", "_entries", "_heap")
    compares_heads = True

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Flow]] = []
        """Key and sequence of a head, a number that no other entry has, and the flow."""
        self._entries = 0
        self._active: set[Flow] = set()

    @override
    def __len__(self) -> int:
        return len(self._active)

    @override
    def activate(self, flow: Flow, now: float) -> None:
        self._active.add(flow)
        self.changed(flow)

    @override
    def deactivate(self, flow: Flow, now: float) -> None:
        self._active.discard(flow)

    @override
    def changed(self, flow: Flow) -> None:
        if len(self._heap) > 2 * len(self._active) + _SLACK:
            self._heap = [entry for each in self._active if (entry := self._entry(each)) is not None]
            heapify(self._heap)
        elif (entry := self._entry(flow)) is not None:
            heappush(self._heap, entry)

    @override
    def select(self, now: float) -> Flow | None:
        heap = self._heap
        while heap:
            key, sequence, _number, flow = heap[0]
            if flow in self._active:
                head = flow.head()
                if head is not None and head[0] == key and head[1] == sequence:
                    return flow
            heappop(heap)
        return None

    def _entry(self, flow: Flow) -> tuple[float, int, int, Flow] | None:
        head = flow.head()
        self._entries += 1
        return None if head is None else (head[0], head[1], self._entries, flow)


class TurnLanes(Lanes):
    """The active flows in the order of their turns."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: OrderedDict[Flow, None] = OrderedDict()

    @override
    def __len__(self) -> int:
        return len(self._turns)

    @override
    def activate(self, flow: Flow, now: float) -> None:
        self._turns[flow] = None

    @override
    def deactivate(self, flow: Flow, now: float) -> None:
        self._turns.pop(flow, None)

    @override
    def select(self, now: float) -> Flow | None:
        return next(iter(self._turns), None)

    @override
    def turned(self, flow: Flow) -> None:
        if flow in self._turns:
            self._turns.move_to_end(flow)
