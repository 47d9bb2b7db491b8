"""The page /debug/queue: bands, flows and saturation of a pool's flow control, as JSON values. Pure.

It changes nothing but the gate's figures, which it brings up to date.
"""

from collections.abc import Generator
from dataclasses import dataclass
from heapq import nlargest
from math import inf, isfinite
from typing import Any, Final

from endpoint_picker.flowcontrol.band import Band
from endpoint_picker.flowcontrol.control import FlowControl
from endpoint_picker.observability.explain import Pausing

#: Flows listed; the others are summed.
MOST_FLOWS: Final = 50
#: Requests or flows looked at between two pauses: about a millisecond.
_AT_A_TIME: Final = 512


@dataclass(slots=True)
class _Waiting:
    """What waits of one tenant in one band."""

    priority: int
    tenant: str
    oldest_at: float
    in_flight: int
    requests: int = 0
    bytes: int = 0


def queue_page(flow: FlowControl | None) -> Pausing:
    """Make the page; None: flow control is off.

    The bands and sums are those of the first step; requests that come or leave during a pause are not seen.
    """
    if flow is None:
        return {"enabled": False, "bands": []}
    flow.look()
    queue, gate, now = flow.queue, flow.gate, flow.now
    bands = tuple(queue.bands)
    settings = queue.settings
    page: dict[str, Any] = {
        "enabled": True,
        "requests": queue.requests,
        "bytes": queue.bytes,
        "maxRequests": _limit(settings.max_requests),
        "maxBytes": _limit(settings.max_bytes),
        "setAside": queue.set_aside,
        "poolEmpty": queue.is_pool_empty,
        "saturation": {stage: _number(load) for stage, load in sorted(gate.stages.items())},
        "staleEndpoints": gate.stale,
        "failedOpenEndpoints": gate.failed_open,
        "dispatchRate": round(queue.rate.per_second(now), 3),
        "oldestWaitSeconds": round(max(band.oldest_age(now, -inf) for band in bands), 3),
        "bands": [
            {
                "priority": band.priority,
                "requests": band.requests,
                "bytes": band.bytes,
                "maxRequests": _limit(band.settings.max_requests),
                "maxBytes": _limit(band.settings.max_bytes),
                "oldestWaitSeconds": round(band.oldest_age(now, -inf), 3),
                "dispatchRate": round(band.rate.per_second(now), 3),
                "retryAfterSeconds": queue.retry_after(band, now),
            }
            for band in bands
        ],
    }
    found: list[_Waiting] = []
    for band in bands:
        found += yield from _flows_of(band)
    listed: list[_Waiting] = nlargest(MOST_FLOWS, found, key=lambda each: (each.requests, -each.oldest_at))
    page["flows"] = [
        {
            "tenant": each.tenant,
            "priority": each.priority,
            "requests": each.requests,
            "bytes": each.bytes,
            "inFlight": each.in_flight,
            "oldestWaitSeconds": round(max(0.0, now - each.oldest_at), 3),
        }
        for each in listed
    ]
    page["otherFlows"] = {
        "flows": len(found) - len(listed),
        "requests": sum(each.requests for each in found) - sum(each.requests for each in listed),
    }
    return page


def _flows_of(band: Band) -> Generator[None, None, list[_Waiting]]:
    found: dict[str, _Waiting] = {}
    for number, queued in enumerate(tuple(band.by_age), 1):
        each = found.get(queued.tenant)
        if each is None:
            flow = band.flows.get(queued.tenant)
            in_flight = 0 if flow is None else flow.inflight
            each = _Waiting(band.priority, queued.tenant, queued.enqueued_at, in_flight)
            found[queued.tenant] = each
        each.requests += 1
        each.bytes += queued.size
        if number % _AT_A_TIME == 0:
            yield
    return list(found.values())


def _limit(most: float) -> int | None:
    return int(most) if most < inf else None


def _number(value: float) -> float | None:
    return round(float(value), 4) if isfinite(value) else None
