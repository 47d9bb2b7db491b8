"""Gives readings of large bodies their steps, one after the other, one for each turn of the event loop. Pure.

However many bodies are read at a time, other requests wait for one step at most.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from ext_proc.body.reading import Reading
from ext_proc.wire import Held


class Turn:
    """One reading's place; a `processor.Waiting`."""

    __slots__ = ("_fed", "_queued", "_turns", "on_done", "reading")

    def __init__(self, turns: "Turns", reading: Reading) -> None:
        self._turns = turns
        self._queued = False
        self._fed = 0
        self.reading: Reading | None = reading
        self.on_done: Callable[[], None] | None = None
        """Called once the reading is done; the body is whole by then."""

    def feed(self, chunks: Sequence[Held]) -> None:
        """Pass the pieces on that have come since the last call, and ask for steps."""
        if self.reading is not None:
            for chunk in islice(chunks, self._fed, None):
                self.reading.feed(chunk)
            self._fed = len(chunks)
            self.wake()

    def wake(self) -> None:
        """Ask for steps."""
        reading = self.reading
        if reading is not None and not self._queued and not reading.done and not reading.starved:
            self._queued = True
            self._turns.queue(self)

    def cancel(self) -> None:
        """Give the reading up."""
        self.reading = self.on_done = None

    def step(self) -> None:
        """Do one step."""
        self._queued = False
        reading = self.reading
        if reading is None:
            return
        reading.advance()
        if not reading.done:
            self.wake()
        elif self.on_done is not None:
            done, self.on_done = self.on_done, None
            done()


class Turns:
    """The readings of a process."""

    __slots__ = ("_queue", "_soon", "max_decoded_bytes")

    def __init__(self, soon: Callable[[Callable[[], None]], object] | None, max_decoded_bytes: int) -> None:
        """`soon` calls a function in the next turn of the event loop; with None there is no loop to spare."""
        self._soon = soon
        self.max_decoded_bytes = max_decoded_bytes
        """Most bytes that an encoded body may have when decoded."""
        self._queue: deque[Turn] = deque()

    def begin(self, reading: Reading) -> Turn:
        """Return the place of a reading; `Turn.wake` starts it."""
        return Turn(self, reading)

    def queue(self, turn: Turn) -> None:
        """Take a turn behind the others."""
        self._queue.append(turn)
        if self._soon is None:
            self._run_all()
        elif len(self._queue) == 1:
            self._soon(self._run)

    def _run_all(self) -> None:
        if len(self._queue) == 1:  # else called from within a step
            while self._queue:
                self._queue[0].step()
                self._queue.popleft()

    def _run(self) -> None:
        turn = self._queue[0]
        try:
            turn.step()
        finally:
            self._queue.popleft()
            if self._queue and self._soon is not None:
                self._soon(self._run)
