"""Processes that simulate, ended with the block that uses them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self

from pool_simulation.study.runs import Outcome, Point, Setup, run

Task = tuple[Setup, Point, int]
"""What `run` takes."""


class WorkerDiedError(Exception):
    """A process ended in the middle of a run, most likely for want of memory."""


class Workers:
    """Runs tasks in `jobs` processes, or in this one if that is 1. Results come in the order of the tasks."""

    def __init__(self, jobs: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(jobs, spawn, _end_with_the_parent) if jobs > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is None:
            return
        if error is not None:  # runs under way may take minutes, and their results are of no use
            for process in multiprocessing.active_children():
                process.terminate()
        self._executor.shutdown(cancel_futures=True)

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Yield the outcome of each task. Raises ValueError as `run` does, and WorkerDiedError."""
        if self._executor is None:
            yield from (run(*task) for task in tasks)
            return
        try:
            for future in self._submitted(self._executor, tasks):
                yield future.result()
        except BrokenProcessPool as error:
            raise WorkerDiedError("a process of the simulation ended in the middle of a run") from error

    @staticmethod
    def _submitted(executor: ProcessPoolExecutor, tasks: Iterable[Task]) -> list[Future[Outcome]]:
        """Submit with SIGINT blocked, which the new processes inherit: Ctrl-C is for this process alone."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return [executor.submit(run, *task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_the_parent() -> None:
    """End this process when its parent has ended, however: an executor's workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
