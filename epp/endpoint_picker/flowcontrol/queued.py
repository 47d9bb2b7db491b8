"""One queued request, and one flow: the requests of one tenant in one band. Pure."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from typing_extensions import override

from endpoint_picker.decision import Resume, Waiting
from endpoint_picker.request import InferenceRequest

#: A flow's heap is rebuilt when it has more than twice the live entries plus this many.
_SLACK: Final = 16


class Queued(Waiting):
    """A request that waits for its dispatch."""

    __slots__ = (
        "_body",
        "_cancel",
        "_headers",
        "_recall",
        "enqueued_at",
        "entry",
        "flow",
        "is_dispatched",
        "is_over",
        "is_parked",
        "position",
        "priority",
        "request",
        "resume",
        "sequence",
        "subset",
        "successor",
        "tenant",
        "tokens",
    )

    def __init__(
        self,
        request: InferenceRequest,
        subset: Sequence[str] | None,
        resume: Resume,
        cancel: Callable[["Queued"], None],
        tenant: str,
        tokens: int,
        now: float,
    ) -> None:
        self.request = request
        self.subset = subset
        self.resume = resume
        self._cancel = cancel
        self._recall: Recall | None = None
        """Makes the prompt material again that was set aside; None when the request has it."""
        self._headers: Any = None
        self._body: Sequence[bytes | memoryview] = ()
        self.tenant = tenant
        """Fairness id."""
        self.tokens = tokens
        """Prompt tokens, estimated."""
        self.enqueued_at = now
        self.priority = 0
        """Of the band that it waits in."""
        self.sequence = 0
        """Order of arrival over all bands."""
        self.position = 0
        """Requests ahead of it when it arrived: those of its own band and of higher ones."""
        self.entry = 0
        """Number of its valid entry in its flow's heap."""
        self.flow: Flow | None = None
        """Where it waits; None while it is parked and after its dispatch."""
        self.is_parked = False
        """Its subset hint names no ready endpoint; it waits outside its flow."""
        self.is_dispatched = False
        self.is_over = False
        """Answered or given up."""
        self.successor: Waiting | None = None
        """After its dispatch: the wait that a plugin asked for."""

    @property
    def size(self) -> int:
        """Return the bytes of its body."""
        return self.request.body_bytes

    @override
    def cancel(self) -> None:
        """Give the request up."""
        self._cancel(self)

    def set_aside(self, recall: "Recall", headers: Any, body: Sequence[bytes | memoryview]) -> None:
        """Drop the prompt material for as long as the request waits.

        `recall(headers, body)` makes it again. Slots hold the three: a closure would take more room.
        """
        self.request.prompt = b""
        self._recall, self._headers, self._body = recall, headers, body

    def restore(self) -> None:
        """Give the request its prompt material back."""
        if self._recall is not None:
            self.request.prompt = self._recall(self._headers, self._body)
            self._recall, self._body = None, ()

    def dispatched_to(self, waiting: Waiting) -> None:
        """Note that a plugin makes the dispatched request wait."""
        self.is_over, self.is_dispatched, self.successor = False, True, waiting


Recall = Callable[[Any, Sequence[bytes | memoryview]], bytes]
"""Reads the prompt material of a body, by the headers of its request."""


class Flow:
    """The requests of one tenant in one band, by the band's ordering."""

    __slots__ = (
        "_heap",
        "_pushes",
        "answer_tokens",
        "blocked_by",
        "id",
        "idle_since",
        "inflight",
        "is_active",
        "live",
        "priority",
        "standing",
        "standing_at",
        "turn",
    )

    def __init__(self, tenant: str, priority: int) -> None:
        self.id = tenant
        self.priority = priority
        self._heap: list[_Entry] = []
        self._pushes = 0
        self.live = 0
        """Requests that wait in it."""
        self.inflight = 0
        """Requests dispatched from it that have not ended."""
        self.is_active = False
        """Its lanes have it."""
        self.blocked_by = ""
        """Model at its limit of requests in flight for which the flow's head waits; "" for none."""
        self.idle_since = 0.0
        self.answer_tokens = 0.0
        """Running mean of its answers' lengths; 0 before the first."""
        self.standing = 0.0
        """Value of the fairness policy: its virtual counter, or its service."""
        self.standing_at = 0.0
        """When the standing was last written, for policies that let it decay."""
        self.turn = 0
        """Number of the flow's valid entry in a heap of the policy."""

    def push(self, key: float, queued: Queued) -> None:
        """Add a request."""
        self._pushes += 1
        queued.flow = self
        queued.tenant = self.id  # one text for all of them
        queued.entry = self._pushes
        heappush(self._heap, (key, queued.sequence, self._pushes, queued))
        self.live += 1

    def head(self) -> "_Entry | None":
        """Return (key, sequence, number of the entry, request) of the next request; None without one."""
        heap = self._heap
        while heap:
            first = heap[0]
            if first[3].flow is self and first[3].entry == first[2]:
                return first
            heappop(heap)
        return None

    def pop(self) -> Queued:
        """Remove and return the head; call only after `head` returned one."""
        queued = heappop(self._heap)[3]
        queued.flow = None
        self.live -= 1
        return queued

    def drop(self, queued: Queued) -> None:
        """Remove a request that `pop` does not return."""
        queued.flow = None
        self.live -= 1
        if len(self._heap) > 2 * self.live + _SLACK:
            self._heap = [each for each in self._heap if each[3].flow is self and each[3].entry == each[2]]
            heapify(self._heap)


_Entry = tuple[float, int, int, Queued]
"""Key, sequence and request; an entry counts while the request has its number."""
