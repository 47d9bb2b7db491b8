"""Background parts that begin anew whenever their task ends.

A part runs until it is stopped. When its task returns, fails or is cancelled, the end is counted and logged,
and the part begins again after a back-off. A part is dead after DEAD_AFTER ends in a row, none after
SETTLED_AFTER seconds: /healthz then answers 503, and the kubelet restarts the process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from inference_operator.shell import metrics

log = logging.getLogger(__name__)

FIRST_BACK_OFF: Final = 0.5
"""Seconds until a part that ended begins again; doubles each time."""
LONGEST_BACK_OFF: Final = 30.0
"""Longest back-off, in seconds."""
SETTLED_AFTER: Final = 60.0
"""Seconds of running after which earlier ends no longer count."""
DEAD_AFTER: Final = 10
"""Ends in a row after which a part is dead."""
_STOP_SECONDS: Final = 3.0

Work = Callable[[], Awaitable[None]]
Clock = Callable[[], float]


class Part:
    """One background part. `kind` labels its metric and its log lines; `name` tells it apart from others."""

    __slots__ = ("_begun", "_clock", "_ends", "_stopped", "_task", "_work", "kind", "name")

    def __init__(self, kind: str, name: str, work: Work, clock: Clock) -> None:
        self.kind = kind
        self.name = name
        self._work = work
        self._clock = clock
        self._ends = 0
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._begun = 0.0
        self._begin()

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The task that runs now; None during a back-off."""
        return self._task

    @property
    def is_dead(self) -> bool:
        """Whether it ended DEAD_AFTER times in a row, and the present run is younger than SETTLED_AFTER."""
        return self._ends >= DEAD_AFTER and not self._is_settled

    @property
    def _is_settled(self) -> bool:
        return self._clock() - self._begun >= SETTLED_AFTER

    def cancel(self) -> None:
        """Stop for good, without waiting for the end."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._stopped:
            return
        self._begun = self._clock()
        self._task = asyncio.create_task(self._run(), name=self.name)
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        await self._work()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if self._stopped:
            return
        error = None if task.cancelled() else task.exception()
        if self._is_settled:
            self._ends = 0
        back_off = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(self._ends, 16))
        self._ends += 1
        metrics.PART_RESTARTS.labels(self.kind).inc()
        log.error(
            "a background part ended and begins anew",
            exc_info=error,
            extra={"part": self.name, "in_a_row": self._ends, "again_in_seconds": back_off},
        )
        asyncio.get_running_loop().call_later(back_off, self._begin)


class Supervisor:
    """All parts of a process."""

    __slots__ = ("_clock", "_parts")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parts: set[Part] = set()

    def start(self, kind: str, work: Work, name: str = "") -> Part:
        """Begin a part in the running loop; `work` runs for ever."""
        part = Part(kind, name or kind, work, self._clock)
        self._parts.add(part)
        return part

    def stop(self, part: Part) -> None:
        """End a part without waiting for it."""
        part.cancel()
        self._parts.discard(part)

    def parts(self, kind: str) -> list[Part]:
        """Return the parts of a kind."""
        return [part for part in self._parts if part.kind == kind]

    def dead(self) -> list[str]:
        """Return the names of the dead parts, sorted."""
        return sorted(part.name for part in self._parts if part.is_dead)

    async def close(self) -> None:
        """End all parts; one that ignores its cancellation is left running after _STOP_SECONDS."""
        tasks = [part.task for part in self._parts if part.task is not None]
        for part in list(self._parts):
            self.stop(part)
        await end_tasks(tasks)


async def end_tasks(tasks: "Iterable[asyncio.Task[None]]") -> None:
    """Await cancelled tasks for _STOP_SECONDS at most, cancelling them again each second.

    Again, because a library may swallow one cancellation, which would delay the end of the process.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(int(_STOP_SECONDS)):
        if not left:
            return
        _, left = await asyncio.wait(left, timeout=1.0)
        for task in left:
            task.cancel()
