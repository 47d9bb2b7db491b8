"""The decisions that wait, and the end of each wait. Pure: `now` is an argument; no timer is set here.

A `MayWait` plugin makes a decision wait by returning a `Hold`; the room keeps it with its request. Each event
ends the wait in one way:

| what happens | end | the plugin |
|---|---|---|
| the plugin releases the hold | decided anew; it may wait again, until its first deadline | released it |
| the stream ends (`cancel`) | no answer: `resume` is never called | `forget` |
| the deadline passes | the hold's refusal | `forget` |
| no endpoint is left that may serve it | decided anew, and refused: no endpoints | `forget` |
| another configuration comes into use | decided anew by that one, until its first deadline | `forget` |
| the picker drains | refused: shutting down; later holds too, at once | `forget` |
| `limit` decisions wait already | the hold's refusal, at once | `forget` |
| the plugin fails in `advance` | by its deadline at the latest; the other plugins go on | - |
| the hold has no finite deadline | its refusal, at once; logged as a fault | `forget` |
| deadline, drain or limit, and the hold has no refusal | decided anew, with the hold | `forget` |
| another decision waits with the same hold | its refusal, at once; logged as a fault | - |
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from typing_extensions import override

from endpoint_picker.decision import Refusal, Resume, Waiting
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import MayWait

#: Most decisions that wait at a time. The body budget bounds the bodies of their requests.
MAX_WAITING: Final = 10_000
#: `add` rebuilds the heap when it has more than twice the live deadlines plus this many.
_SLACK: Final = 64

_SHUTTING_DOWN: Final = Refusal(Outcome.SHUTTING_DOWN, "the picker is shutting down")


class WaitingDecision(Waiting):
    """One decision in the room."""

    __slots__ = ("_room", "deadline", "hold", "is_over", "is_timed", "request", "resume", "subset")

    def __init__(
        self,
        room: "WaitingRoom",
        request: InferenceRequest,
        subset: Sequence[str] | None,
        resume: Resume,
        hold: Hold,
    ) -> None:
        self._room = room
        self.request = request
        self.subset = subset
        self.resume = resume
        self.hold = hold
        """The newest hold; a decision that waits again gets another one."""
        self.deadline = hold.deadline
        """The first hold's deadline: waiting again does not prolong it."""
        self.is_over = False
        """Cancelled or answered."""
        self.is_timed = True
        """Its deadline is in the room's heap."""

    @override
    def cancel(self) -> None:
        """Give the decision up."""
        self._room.cancel(self)


class Released:
    """A wait that ended. The decision is refused with `refusal`, or made anew when that is None."""

    __slots__ = ("decision", "refusal")

    def __init__(self, decision: WaitingDecision, refusal: Refusal | None) -> None:
        self.decision = decision
        self.refusal = refusal


class WaitingRoom:
    """The waiting decisions of one pool. The caller that gets `Released` answers them, in order."""

    __slots__ = ("_by_hold", "_deadlines", "_limit", "_numbers", "_on_fault", "_owners", "is_draining")

    def __init__(self, on_fault: Callable[[Exception], None], limit: int = MAX_WAITING) -> None:
        self._owners: Sequence[MayWait] = ()
        self._on_fault = on_fault
        """Called with each exception that a plugin raised."""
        self._limit = limit
        self._by_hold: dict[Hold, WaitingDecision] = {}
        """In the order in which they began to wait."""
        self._deadlines: list[tuple[float, int, WaitingDecision]] = []
        """A heap. Entries of ended waits stay until they reach its top."""
        self._numbers = 0
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._by_hold)

    def add(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume, hold: Hold
    ) -> WaitingDecision | Refusal | None:
        """Make a decision wait; when it may not, return a refusal, or None: decide anew, at once."""
        if not self._may_wait(hold):
            return self._refusal(hold)
        decision = WaitingDecision(self, request, subset, resume, hold)
        self._by_hold[hold] = decision
        if len(self._deadlines) > 2 * len(self._by_hold) + _SLACK:
            self._deadlines = [each for each in self._deadlines if not each[2].is_over]
            heapify(self._deadlines)
        self._time(decision)
        return decision

    def again(self, decision: WaitingDecision, hold: Hold) -> WaitingDecision | Refusal | None:
        """Make a released decision wait again; when it may not, return as `add` does."""
        if not self._may_wait(hold):
            return self._refusal(hold)
        decision.hold = hold
        self._by_hold[hold] = decision
        if not decision.is_timed:
            self._time(decision)
        return decision

    def cancel(self, decision: WaitingDecision) -> None:
        """Cancel a decision, whether it still waits or was released and not yet answered."""
        if decision.is_over:
            return
        decision.is_over = True
        if self._by_hold.pop(decision.hold, None) is not None:
            self._forget(decision.hold)

    def advance(self, now: float) -> tuple[list[Released], float | None]:
        """Return the waits that end at `now`, and when to call again; None: nothing is due by time."""
        released: list[Released] = []
        due: float | None = None
        for owner in self._owners:
            try:
                holds, next_due = owner.advance(now)
                # `holds` may be a generator that raises: the holds before that stay released.
                for hold in holds:
                    decision = self._by_hold.pop(hold, None)
                    if decision is not None:
                        # Refuse a late one: its plugin could otherwise hold it again, beyond the deadline.
                        late = decision.deadline <= now
                        released.append(Released(decision, hold.refusal if late else None))
                if next_due is not None and next_due < (inf if due is None else due):
                    due = next_due
            except Exception as fault:  # third-party plugins raise anything
                self._on_fault(fault)
        while self._deadlines:
            deadline, _number, decision = self._deadlines[0]
            if not decision.is_over and decision.hold in self._by_hold:
                if deadline > now:
                    due = deadline if due is None else min(due, deadline)
                    break
                released.append(self._ended(decision, decision.hold.refusal))
            heappop(self._deadlines)
            decision.is_timed = False
        return released, due

    def use(self, owners: Sequence[MayWait]) -> list[Released]:
        """Use the plugins of another configuration; return all decisions that waited under the old one."""
        released = [self._ended(decision, None) for decision in list(self._by_hold.values())]
        self._owners = owners
        return released

    def drain(self) -> list[Released]:
        """Refuse the waiting decisions and, from now on, every decision that would wait."""
        self.is_draining = True
        return [
            self._ended(decision, decision.hold.refusal and _SHUTTING_DOWN)
            for decision in list(self._by_hold.values())
        ]

    def endpoints_changed(self, may_be_served: Callable[[Sequence[str] | None], bool]) -> list[Released]:
        """Return the decisions that no endpoint may serve any more; `may_be_served` takes a subset hint."""
        lost = [each for each in self._by_hold.values() if not may_be_served(each.subset)]
        return [self._ended(decision, None) for decision in lost]

    def _time(self, decision: WaitingDecision) -> None:
        self._numbers += 1
        heappush(self._deadlines, (decision.deadline, self._numbers, decision))
        decision.is_timed = True

    def _ended(self, decision: WaitingDecision, refusal: Refusal | None) -> Released:
        """End a wait that its plugin did not release, and call the hold's `forget`."""
        del self._by_hold[decision.hold]
        decision.hold.prefix_chain = ()  # another configuration may cut the prompt otherwise
        self._forget(decision.hold)
        return Released(decision, refusal)

    def _refusal(self, hold: Hold) -> Refusal | None:
        """Return the answer to a decision that may not wait; None: it is made anew."""
        return _SHUTTING_DOWN if self.is_draining and hold.refusal is not None else hold.refusal

    def _may_wait(self, hold: Hold) -> bool:
        """Tell whether the hold may wait; otherwise call its `forget`."""
        if hold in self._by_hold:
            # One of the two decisions would never be answered. No `forget`: the other decision still waits.
            self._on_fault(ValueError("a plugin gave one hold for two decisions"))
            return False
        if not hold.deadline < inf:
            self._on_fault(ValueError("a plugin gave a hold without a deadline"))
        elif not self.is_draining and len(self._by_hold) < self._limit:
            return True
        self._forget(hold)
        return False

    def _forget(self, hold: Hold) -> None:
        try:
            hold.forget(hold)
        except Exception as fault:  # third-party plugins raise anything
            self._on_fault(fault)
