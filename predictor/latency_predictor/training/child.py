"""Runs the learning process: frames go to it, its status comes back; it is started again whenever it ends."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

from latency_predictor.training.frames import HEAD, MAX_FRAME, Kind, frame
from latency_predictor.training.learning_process import Work

#: Bytes that may wait for the learning process while it trains; samples beyond are dropped.
MAX_WAITING: Final = 16 << 20
#: Pauses before it is started again, seconds; the first again after it ran for a minute.
_PAUSES: Final = (0.2, 1.0, 5.0, 15.0)
_RAN_WELL_S: Final = 60.0

_log = logging.getLogger(__name__)


class LearningChild:
    """Supervises the process. `below` is called before each start: journal files below it are the
    process'."""

    def __init__(self, work: Work, below: Callable[[], int]) -> None:
        self._work = work
        self._below = below
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.starts = 0
        self.status: dict[str, Any] = {"state": "warming", "version": "", "samples": 0, "error": ""}
        """The latest one; `starting` until the first."""
        self.has_reported = asyncio.Event()

    def start(self) -> None:
        """Start the process, and keep it running."""
        self._task = asyncio.ensure_future(self._run())

    @property
    def pid(self) -> int | None:
        """Return the id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def send(self, kind: Kind, payload: bytes = b"") -> bool:
        """Hand a frame over; False when the process is away or has too much to do: the frame is lost."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return False
        transport = process.stdin.transport
        if kind is Kind.BATCH and transport.get_write_buffer_size() + len(payload) > MAX_WAITING:
            return False
        process.stdin.write(frame(kind, payload))
        return True

    async def stop(self) -> None:
        """End the process; what it was sent before is read first."""
        self._stopping = True
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await process.wait()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping:
            begun = loop.time()
            work = replace(self._work, below=self._below())
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "latency_predictor.training.learning_process",
                json.dumps(asdict(work)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self.starts += 1
            try:
                if process.stdout is not None:
                    await self._follow(process.stdout)
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
            if self._stopping:
                return
            failures = 0 if loop.time() - begun > _RAN_WELL_S else failures + 1
            pause = _PAUSES[min(failures, len(_PAUSES)) - 1] if failures else 0.0
            _log.error("the learning process ended (%s); next start in %g s", process.returncode, pause)
            self._process = None
            await asyncio.sleep(pause)

    async def _follow(self, stdout: asyncio.StreamReader) -> None:
        while True:
            try:
                kind, size = HEAD.unpack(await stdout.readexactly(HEAD.size))
                if kind != Kind.STATUS or size > MAX_FRAME:
                    _log.error("the learning process sent no status: kind %d, %d bytes", kind, size)
                    return
                self.status = json.loads(await stdout.readexactly(size))
            except asyncio.IncompleteReadError:
                return
            self.has_reported.set()
