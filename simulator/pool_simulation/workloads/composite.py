"""A workload of several sources, merged in time order. Pure."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Protocol

from pool_simulation.workload import SimulatedRequest


class Source(Protocol):
    """One stream or trace of a workload."""

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Yield the requests that depend on no other, in order of arrival."""
        ...

    def finished(self, request: SimulatedRequest, now: float, *, served: bool) -> Iterable[SimulatedRequest]:
        """Return what follows the end of one of this source's requests."""
        ...


class Composite:
    """A `Workload` of several sources by name; a request's `stream` names its source."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Yield the sources' arrivals in order of time, those of one time in the order of the sources."""
        each = [source.arrivals() for source in self._sources.values()]
        return heapq.merge(*each, key=attrgetter("arrival_s")) if len(each) > 1 else each[0]

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        """Return what the request's source lets follow."""
        return self._sources[request.stream].finished(request, now, served=served)
