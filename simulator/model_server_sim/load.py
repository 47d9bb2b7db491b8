"""Steady load from a verifying client, with a record of every request.

It does not judge the results; callers query them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from model_server_sim.client import Ask, InferenceClient, Result

#: Pause of a worker after a failed request, seconds. Without it, refused connections would make it spin.
PAUSE_AFTER_FAILURE_S = 0.02
#: Results that one LoadRun keeps; later ones are counted only in `dropped`.
MAX_RESULTS = 1_000_000


class LoadRun:
    """Keeps a number of requests in flight until `stop` is called or the block is left.

        async with LoadRun(client, in_flight=20) as load:
            ...
        assert load.failures() == []

    `make(n)` gives the n-th request. Leaving the block lets the requests in flight finish.
    """

    def __init__(
        self, client: InferenceClient, *, in_flight: int, make: Callable[[int], Ask] | None = None
    ) -> None:
        self.results: list[Result] = []
        self.dropped = 0
        self._client = client
        self._in_flight = in_flight
        self._make = make or (lambda number: Ask(prompt=f"Request {number}."))
        self._sent = 0
        self._stopping = False
        self._grown = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._in_flight)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for worker in self._workers:
                worker.cancel()
        await self.stop()

    async def stop(self) -> None:
        """Send no more requests and wait for those in flight. Re-raises an exception of `make`."""
        self._stopping = True
        outcomes = await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def until(self, condition: Callable[[Result], bool], *, count: int = 1) -> None:
        """Wait until `count` results that satisfy the condition have ended, from now on."""
        async for result in self.following():
            count -= condition(result)
            if count <= 0:
                return

    async def following(self) -> AsyncIterator[Result]:
        """Yield each result that ends from now on; never ends by itself."""
        seen = len(self.results)
        while True:
            while seen < len(self.results):
                seen += 1
                yield self.results[seen - 1]
            self._grown.clear()
            await self._grown.wait()

    def failures(
        self, *, sent_after: float = float("-inf"), sent_before: float = float("inf")
    ) -> list[Result]:
        """Return the failed requests sent within [sent_after, sent_before), monotonic seconds."""
        return [r for r in self.sent(after=sent_after, before=sent_before) if not r.ok]

    def sent(self, *, after: float = float("-inf"), before: float = float("inf")) -> list[Result]:
        """Return the requests that were sent within [after, before), in order of their end."""
        return [r for r in self.results if after <= r.start < before]

    def served_by(self, *, after: float = float("-inf")) -> Counter[str]:
        """Return how many successes each server gave among requests sent after a time."""
        return Counter(r.served_by for r in self.sent(after=after) if r.ok)

    async def _work(self) -> None:
        while not self._stopping:
            number, self._sent = self._sent, self._sent + 1
            result = await self._client.send(self._make(number))
            if len(self.results) < MAX_RESULTS:
                self.results.append(result)
            else:
                self.dropped += 1
            self._grown.set()
            if not result.ok:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
