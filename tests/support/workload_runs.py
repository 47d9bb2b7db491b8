"""Runs a workload against a pool that answers every request after a fixed time."""

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path

from pool_simulation.workload import SimulatedRequest, Workload
from pool_simulation.workloads import spec, start


def workload(text: str, *, seed: int = 1, scale: float = 1.0) -> Workload:
    """Return the workload of a YAML text for one run; its traces lie in docs/simulate."""
    return start.prepare(spec.load(text), Path(__file__).parents[2] / "docs/simulate").start(
        seed, scale=scale
    )


def requests(
    source: Workload,
    *,
    answer_s: float | Callable[[SimulatedRequest], float] = 1.0,
    served: bool = True,
) -> list[SimulatedRequest]:
    """Return all requests in order of arrival."""

    def ends(request: SimulatedRequest) -> float:
        return request.arrival_s + (answer_s if isinstance(answer_s, int | float) else answer_s(request))

    given: list[SimulatedRequest] = []
    under_way: list[tuple[float, int, SimulatedRequest]] = []
    arrivals: Iterator[SimulatedRequest] = source.arrivals()
    coming = next(arrivals, None)
    while coming or under_way:
        if under_way and (coming is None or under_way[0][0] <= coming.arrival_s):
            now, _, ended = heapq.heappop(under_way)
            new = list(source.finished(ended, now, served=served))
            assert all(request.arrival_s >= now for request in new)
        else:
            assert coming is not None
            new, coming = [coming], next(arrivals, None)
        for request in new:
            given.append(request)
            heapq.heappush(under_way, (ends(request), len(given), request))
    return sorted(given, key=lambda request: request.arrival_s)
