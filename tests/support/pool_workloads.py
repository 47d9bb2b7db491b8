"""Small workloads for tests of the pool simulation."""

import random
from collections.abc import Iterable, Iterator

from pool_simulation.workload import Segment, SimulatedRequest


class Steady:
    """Poisson arrivals at `rate` a second; prompts share one of `heads` system prompts of `head_tokens`.

    It notes what it was told of ends: request id to how often, and whether served.
    """

    def __init__(
        self,
        rate: float,
        seed: int = 1,
        *,
        heads: int = 8,
        head_tokens: int = 512,
        tail_tokens: int = 128,
        output_tokens: int = 50,
        priority: int = 0,
    ) -> None:
        self._rate = rate
        self._rng = random.Random(seed)
        self._heads, self._head_tokens = heads, head_tokens
        self._tail_tokens, self._output_tokens = tail_tokens, output_tokens
        self._priority = priority
        self.given: list[str] = []
        self.ended: list[tuple[str, bool]] = []

    def arrivals(self) -> Iterator[SimulatedRequest]:
        now, number = 0.0, 0
        rng = self._rng
        while True:
            now += rng.expovariate(self._rate)
            number += 1
            request = SimulatedRequest(
                request_id=f"r{number}",
                arrival_s=now,
                prompt=(
                    Segment(rng.randrange(self._heads), self._head_tokens),
                    Segment(1_000_000 + 2 * number, self._around(self._tail_tokens)),
                ),
                output_tokens=self._around(self._output_tokens),
                output_segment=1_000_001 + 2 * number,
                model="m",
                objective="sheddable" if self._priority else None,
                priority=self._priority,
                slo_ttft_ms=500.0,
                slo_tpot_ms=50.0,
            )
            self.given.append(request.request_id)
            yield request

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        self.ended.append((request.request_id, served))
        return ()

    def _around(self, mean: int) -> int:
        return self._rng.randint(max(1, mean // 2), mean * 3 // 2)


class Chats:
    """`users` chats of `turns` turns: each repeats what was said, answer included, after a think time."""

    def __init__(self, users: int, turns: int = 4, think_s: float = 1.0, seed: int = 1) -> None:
        self._users, self._turns, self._think_s = users, turns, think_s
        self._rng = random.Random(seed)
        self._numbers = 0
        self._turn: dict[str, int] = {}

    def arrivals(self) -> Iterator[SimulatedRequest]:
        for user in range(self._users):
            self._turn[str(user)] = 1
            yield self._ask(str(user), user * 0.05, (Segment(7, 300),))

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        session = request.session
        assert session is not None
        if not served or self._turn[session] == self._turns:
            return ()
        self._turn[session] += 1
        said = (*request.prompt, Segment(request.output_segment, request.output_tokens))
        return (self._ask(session, now + self._rng.expovariate(1 / self._think_s), said),)

    def _ask(self, session: str, at: float, said: tuple[Segment, ...]) -> SimulatedRequest:
        self._numbers += 1
        number = 1_000_000 + 2 * self._numbers
        return SimulatedRequest(
            request_id=f"{session}-{self._turn[session]}",
            arrival_s=at,
            prompt=(*said, Segment(number, self._rng.randint(50, 150))),
            output_tokens=self._rng.randint(30, 90),
            output_segment=number + 1,
            model="m",
            session=session,
        )
