"""The ordering policies: which request of a flow goes first. Pure."""

from math import inf
from typing import ClassVar, Final

from typing_extensions import override

from endpoint_picker.flowcontrol.policies import OrderingPolicy
from endpoint_picker.flowcontrol.queued import Queued

#: Headers with the longest time to first token that the client accepts, whole milliseconds; the first counts.
SLO_TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
#: Bounds of that time, milliseconds: a shorter one counts as the lower, a longer one as none.
SHORTEST_SLO_MS: Final = 10
LONGEST_SLO_MS: Final = 3_600_000
_LONGEST_TEXT: Final = 16


class FcfsOrderingPolicy(OrderingPolicy):
    """In order of arrival."""

    __slots__ = ()
    type_name: ClassVar[str] = "fcfs-ordering-policy"

    @override
    def key(self, queued: Queued, ttl: float) -> float:
        """Return 0: only the order of arrival counts."""
        return 0.0


class EdfOrderingPolicy(OrderingPolicy):
    """The request whose wait ends first, which is arrival plus the band's longest wait."""

    __slots__ = ()
    type_name: ClassVar[str] = "edf-ordering-policy"

    @override
    def key(self, queued: Queued, ttl: float) -> float:
        """Return when the wait ends."""
        return queued.enqueued_at + ttl


class SloDeadlineOrderingPolicy(OrderingPolicy):
    """The request whose first token is due first.

    Due is the arrival plus the milliseconds of the header x-llm-d-slo-ttft-ms or x-slo-ttft-ms. A number
    below 10 counts as 10; a missing, invalid or larger number than an hour's counts as never.
    """

    __slots__ = ()
    type_name: ClassVar[str] = "slo-deadline-ordering-policy"

    @override
    def key(self, queued: Queued, ttl: float) -> float:
        """Return when the first token is due."""
        for name in SLO_TTFT_HEADERS:
            text = queued.request.headers.get(name)
            if text:
                return queued.enqueued_at + _clamped(text) / 1000.0
        return inf


def _clamped(text: str) -> float:
    """Return the milliseconds within the bounds; infinite when they are no such number."""
    if len(text) > _LONGEST_TEXT or not (text.isascii() and text.isdigit()):
        return inf
    wanted = int(text)
    return inf if wanted > LONGEST_SLO_MS else float(max(SHORTEST_SLO_MS, wanted))
