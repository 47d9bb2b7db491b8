"""The flows without a request: forgotten at once, or when their standing no longer counts. Pure."""

from collections import OrderedDict
from typing import Final

from endpoint_picker.flowcontrol.band import Band
from endpoint_picker.flowcontrol.queued import Flow

#: Idle flows that are remembered at most; the one idle for longest is forgotten first.
MAX_IDLE: Final = 10_000
#: Idle flows looked at whenever one more is added: enough to forget faster than they come.
_LOOKED_AT: Final = 2


class IdleFlows:
    """The flows whose standing outlasts their idleness, the longest idle first."""

    __slots__ = ("_flows",)

    def __init__(self) -> None:
        self._flows: OrderedDict[Flow, Band] = OrderedDict()

    def __len__(self) -> int:
        return len(self._flows)

    def add(self, band: Band, flow: Flow, now: float) -> None:
        """Forget a flow that became idle, or remember it while it has a standing."""
        flow.idle_since = now
        if not band.lanes.remembers(flow, now):
            self._forget(band, flow)
            self._flows.pop(flow, None)
        else:
            self._flows[flow] = band
            self._flows.move_to_end(flow)
        for _ in range(min(_LOOKED_AT, len(self._flows))):
            oldest, home = next(iter(self._flows.items()))
            if len(self._flows) <= MAX_IDLE and home.lanes.remembers(oldest, now):
                self._flows.move_to_end(oldest)
                continue
            del self._flows[oldest]
            self._forget(home, oldest)

    def discard(self, flow: Flow | None) -> None:
        """Note that a flow has a request again."""
        if flow is not None:
            self._flows.pop(flow, None)

    @staticmethod
    def _forget(band: Band, flow: Flow) -> None:
        if band.flows.get(flow.id) is flow:
            del band.flows[flow.id]
