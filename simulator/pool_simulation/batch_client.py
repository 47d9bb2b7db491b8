"""A batch client beside a workload: jobs sent as the subscriber's own flow allows. Pure.

`batch_subscriber.flow` decides how many jobs are in flight, as in `headroom-batch`. The client acts when any
request of the pool ends and when a reading of the picker is taken; a refused job is sent again after a wait.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final

from batch_subscriber.flow import Flow, FlowSettings, Outcome, Reading, Ticket
from batch_subscriber.retries import Limits, backoff
from pool_simulation.workload import SimulatedRequest, Workload

#: Stream of the jobs' requests.
STREAM: Final = "batch"
_LIMITS: Final = Limits()


class BatchBeside:
    """A workload with a batch client beside it. The jobs' ids differ from the workload's."""

    def __init__(
        self,
        workload: Workload,
        jobs: Sequence[SimulatedRequest],
        settings: FlowSettings,
        chance: Callable[[], float],
    ) -> None:
        """Send `jobs`, whose times of arrival do not count, beside `workload`; `chance` gives [0, 1)."""
        self._workload = workload
        self._jobs = deque(replace(job, stream=STREAM) for job in jobs)
        self._delayed: list[tuple[float, int, SimulatedRequest]] = []
        self._chance = chance
        self._flow = Flow(settings)
        self._tickets: dict[str, tuple[Ticket, SimulatedRequest]] = {}
        self._sent = 0
        self.done: list[tuple[float, SimulatedRequest]] = []
        """Jobs that were served, and when."""

    @property
    def in_flight(self) -> int:
        """Return the jobs that were sent and have not ended; those that wait in the picker included."""
        return self._flow.in_flight

    @property
    def left(self) -> int:
        """Return the jobs that were not served yet."""
        return len(self._jobs) + len(self._delayed) + len(self._tickets)

    def read(self, now: float, reading: Reading) -> None:
        """Take a reading of the picker; what it makes room for goes when the next request ends."""
        self._flow.read(now, reading)

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Yield the first jobs, then what the workload yields."""
        yield from self._send(0.0)
        yield from self._workload.arrivals()

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        """Return what follows in the workload, and the jobs for which there is room."""
        following: list[SimulatedRequest] = []
        if request.stream != STREAM:
            following.extend(self._workload.finished(request, now, served=served))
        else:
            self._ended(request, now, served=served)
        following.extend(self._send(now))
        return following

    def _ended(self, request: SimulatedRequest, now: float, *, served: bool) -> None:
        ticket, job = self._tickets.pop(request.request_id)
        if served:
            self._flow.ended(now, ticket, Outcome.SERVED)
            self.done.append((now, job))
            return
        wait_s = backoff(1, self._chance(), _LIMITS)
        self._flow.ended(now, ticket, Outcome.BUSY, wait_s)
        self._sent += 1
        heappush(self._delayed, (now + wait_s, self._sent, job))

    def _send(self, now: float) -> Iterator[SimulatedRequest]:
        while self._flow.room(now) > 0 and (job := self._next(now)) is not None:
            self._sent += 1
            request_id = f"{job.request_id}/{self._sent}"
            self._tickets[request_id] = (self._flow.sent(now), job)
            yield replace(job, request_id=request_id, arrival_s=now)

    def _next(self, now: float) -> SimulatedRequest | None:
        if self._delayed and self._delayed[0][0] <= now:
            return heappop(self._delayed)[2]
        return self._jobs.popleft() if self._jobs else None
