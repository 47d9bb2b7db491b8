"""Runs one engine in real time: one task steps it and wakes the streams whose sequences got a token.

Holds all asyncio between engine and HTTP, and nothing of HTTP.
"""

import asyncio
from collections.abc import Callable

from model_server_sim.engine import Engine, Request, Sequence, Step

#: Steps in a row, when the engine is behind the clock, before the loop's other tasks run.
STEPS_PER_TURN = 32


class Stream:
    """The progress of one request, for its HTTP handler."""

    __slots__ = ("_progressed", "_whole", "sequence")

    def __init__(self, sequence: Sequence, *, whole: bool) -> None:
        self.sequence = sequence
        self._whole = whole
        self._progressed = asyncio.Event()

    async def more_than(self, seen: int) -> int:
        """Wait for more than `seen` tokens, a `whole` stream for all of them; return how many there are."""
        sequence = self.sequence
        while sequence.generated <= seen or (self._whole and not sequence.finished):
            self._progressed.clear()
            await self._progressed.wait()
        return sequence.generated

    def wake(self) -> None:
        """Wake the waiting handler after a new token; that of a `whole` stream only after the last."""
        if not self._whole or self.sequence.finished:
            self._progressed.set()


class Driver:
    """An engine on the loop's clock, `time_scale` simulated seconds per real second.

    `record` is called with every step that ended an iteration. Run `run()` as a task while serving.
    """

    def __init__(self, engine: Engine, time_scale: float, record: Callable[[Engine, Step], None]) -> None:
        self.engine = engine
        self._time_scale = time_scale
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._streams: dict[str, Stream] = {}
        self._changed = asyncio.Event()

    def now(self) -> float:
        """Return the simulated time, seconds since the start."""
        return (self._loop.time() - self._started) * self._time_scale

    def submit(self, request: Request, *, whole: bool) -> Stream:
        """Queue a request; close the stream with `close`. Raises ValueError as `Engine.submit` does."""
        stream = Stream(self.engine.submit(request, self.now()), whole=whole)
        self._streams[request.request_id] = stream
        self._changed.set()
        return stream

    def close(self, stream: Stream) -> bool:
        """Forget a stream and abort its sequence; return False when the sequence had finished."""
        request_id = stream.sequence.request.request_id
        self._streams.pop(request_id, None)
        return self.engine.abort(request_id)

    def change(self, act: Callable[[Engine, float], object]) -> None:
        """Call `act(engine, now)`, which changes the engine, and look again for what is due."""
        act(self.engine, self.now())
        self._changed.set()

    def later(self, simulated_s: float, act: Callable[[Engine, float], object]) -> None:
        """Call `change(act)` after a simulated time."""
        self._loop.call_later(simulated_s / self._time_scale, self.change, act)

    async def run(self) -> None:
        """Step the engine whenever it is due; ends by cancellation only."""
        steps = 0
        while True:
            step = self.engine.step(self.now())
            self._deliver(step)
            if step.next_time is None:
                self._changed.clear()
                await self._changed.wait()
                steps = 0
                continue
            steps += 1
            wait_s = (step.next_time - self.now()) / self._time_scale
            if wait_s > 0 or steps >= STEPS_PER_TURN:
                await asyncio.sleep(max(wait_s, 0))
                steps = 0

    def _deliver(self, step: Step) -> None:
        if not step.batch_tokens:
            return
        self._record(self.engine, step)
        streams = self._streams
        for event in step.events:
            stream = streams.get(event.sequence.request.request_id)
            if stream is not None:
                stream.wake()
