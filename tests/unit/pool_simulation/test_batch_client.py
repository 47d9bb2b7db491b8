"""The batch client of a simulated pool: every job is served once, whatever is refused."""

from collections.abc import Iterable, Iterator

from batch_subscriber.flow import FlowSettings, Reading
from pool_simulation.batch_client import BatchBeside
from pool_simulation.workload import Segment, SimulatedRequest


def request(name: str, arrival_s: float = 0.0) -> SimulatedRequest:
    return SimulatedRequest(
        request_id=name,
        arrival_s=arrival_s,
        prompt=(Segment(1, 10),),
        output_tokens=1,
        output_segment=2,
        model="m",
        stream="chat",
    )


class Chat:
    """One request a second."""

    def arrivals(self) -> Iterator[SimulatedRequest]:
        for number in range(100):
            yield request(f"chat-{number}", float(number))

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        return ()


def client(jobs: int, **settings: int) -> BatchBeside:
    return BatchBeside(
        Chat(), [request(f"job-{number}") for number in range(jobs)], FlowSettings(**settings), lambda: 0.5
    )


def test_the_first_jobs_go_at_once_and_chat_follows() -> None:
    arrivals = list(client(10, first=3).arrivals())
    assert [one.stream for one in arrivals] == ["batch"] * 3 + ["chat"] * 100
    assert len({one.request_id for one in arrivals}) == 103


def test_every_job_is_served_once_although_some_are_refused() -> None:
    beside = client(20, first=3)
    pending = [one for one in beside.arrivals() if one.stream == "batch"]
    now, count = 0.0, 0
    while beside.left:
        now += 5.0
        if pending:
            count += 1
            pending.extend(beside.finished(pending.pop(0), now, served=count % 4 != 0))
        else:
            pending.extend(beside.finished(request("chat-0"), now))
    assert sorted(job.request_id for _, job in beside.done) == sorted(f"job-{number}" for number in range(20))
    assert beside.in_flight == 0


def test_a_full_pool_is_sent_no_more() -> None:
    beside = client(50, first=8)
    pending = [one for one in beside.arrivals() if one.stream == "batch"]
    for now in range(1, 10):
        beside.read(float(now), Reading(saturation=1.5))
    sent = list(beside.finished(pending[0], 10.0))
    assert sent == []
    beside.read(11.0, Reading(saturation=0.1))
    for one in pending[1:]:
        sent.extend(beside.finished(one, 12.0))
    assert sent != []
