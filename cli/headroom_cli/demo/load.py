"""Load during a scenario: the simulator's verifying client on an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from headroom_cli.demo.api import wait_for
from model_server_sim.client import Ask, InferenceClient, Result
from model_server_sim.load import LoadRun

#: The model that the quickstart's servers serve.
MODEL = "qwen"
#: Padding of a request body, bytes: enough that Envoy and the picker pass the body in several chunks.
ECHO_BYTES = 200_000


class Load:
    """Keeps requests in flight to a base URL while the block runs.

        with Load(url, in_flight=16) as load:
            load.await_served(100)
            sent = load.stop()

    `large` sends streaming requests with bodies of 200 kB; checksums cover both directions. `saturating`
    sends long prompts with long answers, which fill a pool's queues. `make(n)` gives the n-th request in
    their place.
    """

    def __init__(
        self,
        base_url: str,
        *,
        in_flight: int,
        large: bool = False,
        saturating: bool = False,
        make: Callable[[int], Ask] | None = None,
    ) -> None:
        self._base_url = base_url
        self._in_flight = in_flight
        self._make = make or (_large if large else _long if saturating else _mixed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="load", daemon=True)
        self._client = InferenceClient(base_url)
        self._run: LoadRun | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def await_served(self, count: int, *, limit_s: float = 120.0) -> None:
        """Wait until `count` more requests have succeeded."""
        run = self._running()
        already = sum(result.ok for result in run.results)
        wait_for(
            f"{count} served requests",
            lambda: sum(result.ok for result in run.results) >= already + count,
            limit_s=limit_s,
        )

    def served_by(self) -> dict[str, float]:
        """Return, by server, when the first request that it answered was sent."""
        first: dict[str, float] = {}
        for result in list(self._running().results):
            if result.ok:
                first.setdefault(result.served_by, result.start)
        return first

    def stop(self) -> list[Result]:
        """Let the requests in flight finish; return all that were sent. A second call only returns them."""
        run = self._running()
        if not self._stopped:
            self._stopped = True
            self._call(self._end(run))
        return run.results

    async def _begin(self) -> None:
        await self._client.__aenter__()
        self._run = LoadRun(self._client, in_flight=self._in_flight, make=self._make)
        await self._run.__aenter__()

    async def _end(self, run: LoadRun) -> None:
        await run.__aexit__(None, None, None)
        await self._client.__aexit__(None, None, None)

    def _running(self) -> LoadRun:
        if self._run is None:
            raise RuntimeError("Load is used outside its `with`")
        return self._run

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result(timeout=180)


def _mixed(number: int) -> Ask:
    """Return a request; every second one streams. Prompts differ early, so none follows a cached prefix."""
    return Ask(model=MODEL, prompt=f"Question {number}. " * 20, stream=number % 2 == 0)


def _large(number: int) -> Ask:
    return Ask(model=MODEL, prompt=f"Body {number}.", stream=True, padding_bytes=ECHO_BYTES)


def _long(number: int) -> Ask:
    return Ask(
        model=MODEL, prompt=f"{number} " * 8_000, max_tokens=400, stream=True, extra={"ignore_eos": True}
    )


@dataclass(frozen=True, slots=True)
class Once:
    """Sends single requests, each on a client of its own."""

    base_url: str
    timeout_s: float = 30.0

    def __call__(self, ask: Callable[[InferenceClient], Coroutine[Any, Any, Result]]) -> Result:
        """Run the coroutine that `ask` makes with a new client, and return its result."""

        async def run() -> Result:
            async with InferenceClient(self.base_url, timeout_s=self.timeout_s) as client:
                return await ask(client)

        return asyncio.run(run())
