"""The programs of the node as supervised parts: whatever ends or hangs is started again, counted and logged.

A part that ends again and again ends the node: one that lacks a part would only mislead its users.
"""

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from local_cluster.errors import StartError
from local_cluster.kubelet.record import PartState, write_parts
from local_cluster.processes import log_summary

_log = logging.getLogger(__name__)
_LOG_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a part may fail, in which way. Times are seconds."""

    shortest_backoff: float = 0.25
    """Between the first end and the next start; doubles with each further end in a row."""
    longest_backoff: float = 10.0
    steady: float = 60.0
    """A part that ran this long begins anew with the shortest back-off."""
    most_ends: int = 8
    """Ends in a row, none after `steady` of running, that end the node."""
    check_every: float = 5.0
    """Between two health checks of a part."""
    hung: float = 30.0
    """A part that fails its checks this long is killed; its start counts."""


@dataclass(slots=True)
class Part:
    """One program and what is known of it. `healthy` returns whether it answers; it takes 3 s at most."""

    name: str
    argv: Sequence[str]
    healthy: Callable[[], bool]
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    ends_in_a_row: int = 0
    started_at: float = 0.0
    due_at: float = 0.0
    answered_at: float = 0.0
    checked_at: float = 0.0
    last_end: str = ""


@dataclass(slots=True)
class Parts:
    """The parts of a node."""

    logs: Path
    state: Path
    """File that says how often each part was started, and how it last ended."""
    environment: Mapping[str, str]
    patience: Patience = Patience()
    _parts: list[Part] = field(default_factory=list)

    def add(self, name: str, argv: Sequence[str], healthy: Callable[[], bool]) -> None:
        """Start a part and look after it from now on."""
        part = Part(name, argv, healthy)
        self._parts.append(part)
        self._start(part)

    def look_after(self) -> None:
        """Restart what ended, check what runs. Returns soon; call it again and again.

        Raises:
            StartError: a part ended `most_ends` times in a row.
        """
        now = time.monotonic()
        for part in self._parts:
            if part.process is None:
                if now >= part.due_at:
                    self._start(part)
            elif (code := part.process.poll()) is not None:
                self._ended(part, f"ended with code {code}")
            elif now - part.checked_at >= self.patience.check_every:
                self._check(part)

    def kill(self) -> None:
        """Kill every part and look after none any more."""
        parts, self._parts = self._parts, []
        for part in parts:
            if part.process is not None:
                _kill(part.process)

    def _start(self, part: Part) -> None:
        log = self.logs / f"{part.name}.log"
        _bound(log)
        with log.open("ab") as output:
            part.process = subprocess.Popen(  # noqa: S603 - a known program, no shell
                part.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                start_new_session=True,
                cwd="/",
            )
        part.starts += 1
        part.started_at = part.answered_at = part.checked_at = time.monotonic()
        _log.info("%s started (start %d)", part.name, part.starts)
        self._write_state()

    def _ended(self, part: Part, how: str) -> None:
        now, most = time.monotonic(), self.patience
        part.process = None
        part.last_end = how
        part.ends_in_a_row = 1 if now - part.started_at >= most.steady else part.ends_in_a_row + 1
        log = self.logs / f"{part.name}.log"
        if part.ends_in_a_row >= most.most_ends:
            times = f"{most.most_ends} times in a row"
            message = f"{part.name} {how}, {times}: {log_summary(log)} (all of it in {log})"
            raise StartError(message)
        delay = min(most.shortest_backoff * 2 ** (part.ends_in_a_row - 1), most.longest_backoff)
        part.due_at = now + delay
        _log.warning("%s %s; starting it again in %.2f s", part.name, how, delay)
        self._write_state()

    def _check(self, part: Part) -> None:
        """Ask whether it answers; kill it when it has not for `hung` seconds."""
        _bound(self.logs / f"{part.name}.log")
        if part.healthy():
            part.answered_at = time.monotonic()
        part.checked_at = time.monotonic()
        silent = part.checked_at - part.answered_at
        if silent >= self.patience.hung and part.process is not None:
            _log.warning("%s has not answered for %.0f s: killing it", part.name, silent)
            _kill(part.process)
            self._ended(part, f"was killed: it did not answer for {silent:.0f} s")

    def reap_orphans(self) -> None:
        """Reap children that are no parts, as the first process of a PID namespace has to.

        A part's own end is left for its Popen to see.
        """
        own = {part.process.pid for part in self._parts if part.process is not None}
        with contextlib.suppress(ChildProcessError):
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid in own:
                    return
                os.waitpid(ended.si_pid, 0)

    def _write_state(self) -> None:
        states = (
            PartState(part.name, part.starts, part.last_end, part.process is not None) for part in self._parts
        )
        write_parts(self.state, states)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _bound(log: Path) -> None:
    """Begin a log anew once it is larger than _LOG_BYTES; the old content is kept beside it once."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LOG_BYTES:
            kept = log.with_suffix(".old.log")
            kept.write_bytes(log.read_bytes())
            os.truncate(log, 0)  # the program appends
