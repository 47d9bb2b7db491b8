"""The prediction servers as one picker sees them: what each works on, and which of them answer. Pure."""

from collections.abc import Sequence
from math import inf
from typing import Final

#: Failures in a row after which a server is left out.
FAILURES: Final = 2
#: Seconds for which a server that has no model is asked only where no other one is left.
WARMING_S: Final = 0.5
#: Seconds that it is left out for at first, and at most.
FIRST_REST_S: Final = 0.25
LONGEST_REST_S: Final = 5.0


class _Server:
    __slots__ = ("calls", "failures", "rests_until", "rows", "warms_until")

    def __init__(self) -> None:
        self.calls = 0
        self.rows = 0
        self.failures = 0
        self.rests_until = 0.0
        self.warms_until = -inf


class PredictionServers:
    """Servers by number."""

    __slots__ = ("_servers", "calls")

    def __init__(self, count: int) -> None:
        self._servers: Sequence[_Server] = [_Server() for _ in range(count)]
        self.calls = 0
        """How many calls are open."""

    def __len__(self) -> int:
        return len(self._servers)

    def some_answer(self) -> bool:
        """Tell whether a server answers, as far as is known."""
        return any(each.failures < FAILURES for each in self._servers)

    def answering(self) -> int:
        """Return how many servers answer, as far as is known."""
        return sum(each.failures < FAILURES for each in self._servers)

    def choose(self, now: float) -> int | None:
        """Return the server with the fewest rows outstanding of those that answer; None: none does.

        A server that rested is tried with one call at a time until it answers. One without a model comes
        after all others.
        """
        best: int | None = None
        least = (True, 0)
        for number, each in enumerate(self._servers):
            if each.failures >= FAILURES and (now < each.rests_until or each.calls):
                continue
            load = (now < each.warms_until, each.rows)
            if best is None or load < least:
                best, least = number, load
        return best

    def others_have_a_model(self, number: int, now: float) -> bool:
        """Tell whether a server but this one answers and is not known to be without a model."""
        return any(
            each.failures < FAILURES and now >= each.warms_until
            for at, each in enumerate(self._servers)
            if at != number
        )

    def sent(self, number: int, rows: int) -> None:
        """Note a call."""
        server = self._servers[number]
        self.calls += 1
        server.calls += 1
        server.rows += rows

    def ended(self, number: int, rows: int, now: float, *, answered: bool, has_model: bool = True) -> None:
        """Note the end of a call."""
        server = self._servers[number]
        self.calls -= 1
        server.calls -= 1
        server.rows -= rows
        if answered:
            server.failures = 0
            server.warms_until = -inf if has_model else now + WARMING_S
            return
        server.failures += 1
        if server.failures >= FAILURES:
            rest = FIRST_REST_S * 2.0 ** min(server.failures - FAILURES, 10)
            server.rests_until = now + min(rest, LONGEST_REST_S)
