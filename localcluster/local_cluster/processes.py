"""Child processes that cannot outlive their parent, with their output in a log file.

The kernel kills a child when the *thread* that started it ends: start children from a thread that lives on.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from local_cluster.errors import StartError

_LAUNCHER: Final = Path(__file__).with_name("launch.py")
_SUMMARY_LINES: Final = 3
_LINE_LIMIT: Final = 300
#: Where a Go program begins to print its stacks.
_TRACE: Final = re.compile(r"panic: |fatal error: |goroutine \d+ \[")


def tied_argv(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` (absolute program path first) tied to this process's life."""
    return [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *argv]


class Child:
    """A program that runs until it is stopped; its output goes to `log`."""

    def __init__(self, name: str, argv: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a known program, no shell
                tied_argv(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd="/"
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group and session."""
        return self._process.pid

    def ended(self) -> int | None:
        """Return the exit code once it has ended (negative: the signal), None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise StartError, with the end of its log, if it has ended."""
        if (code := self.ended()) is not None:
            message = f"{self.name} ended with code {code}: {log_summary(self.log)} (all of it in {self.log})"
            raise StartError(message)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; True when it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to its process group and wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def stop_all(children: Iterable[Child], grace_s: float) -> None:
    """Send SIGTERM to all, wait `grace_s` seconds altogether, then kill those that still run."""
    children = list(children)
    deadline = time.monotonic() + grace_s
    for child in children:
        child.terminate()
    for child in children:
        child.wait(max(deadline - time.monotonic(), 0))
        child.kill()


def log_summary(log: Path) -> str:
    """Return the end of a log on one line, without stack traces."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        trace = next((n for n, line in enumerate(lines) if _TRACE.match(line)), len(lines))
        # A program may panic before it logs anything; then the panic's own line is the summary.
        found = [_readable(line) for line in (lines[:trace] or lines[:1])[-_SUMMARY_LINES:]]
        if found:
            return " | ".join(found)
    return "it logged nothing"


def _readable(line: str) -> str:
    """Return a log line for people: of etcd's JSON the message and the error."""
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and "msg" in entry:
            line = ": ".join(str(entry[key]) for key in ("msg", "error") if key in entry)
    return line if len(line) <= _LINE_LIMIT else f"{line[:_LINE_LIMIT]}…"


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that are free now; all are held until the last is found, so they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
