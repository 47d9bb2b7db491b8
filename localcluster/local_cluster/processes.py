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
_LAST_WORDS: Final = 3
_LONGEST_WORD: Final = 300
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
            self._process = subprocess.Popen(  # noqa: S603 - a program of ours, no shell
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
        """Raise StartError, with its last words, if it has ended."""
        if (code := self.ended()) is not None:
            message = f"{self.name} ended with code {code}: {last_words(self.log)} (all of it in {self.log})"
            raise StartError(message)

    def terminate(self) -> None:
        """Ask it to end."""
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
        """End it and whatever it left in its process group, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def stop_all(children: Iterable[Child], grace_s: float) -> None:
    """Ask all to end, wait `grace_s` seconds in all, then kill what is left."""
    children = list(children)
    deadline = time.monotonic() + grace_s
    for child in children:
        child.terminate()
    for child in children:
        child.wait(max(deadline - time.monotonic(), 0))
        child.kill()


def last_words(log: Path) -> str:
    """Return the end of a log on one line, without stack traces."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        trace = next((n for n, line in enumerate(lines) if _TRACE.match(line)), len(lines))
        # A program may panic first thing; then the panic's own line has to do.
        words = [_sentence(line) for line in (lines[:trace] or lines[:1])[-_LAST_WORDS:]]
        if words:
            return " | ".join(words)
    return "it said nothing"


def _sentence(line: str) -> str:
    """Return a log line for people: of etcd's JSON what is said, and the cause."""
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and "msg" in entry:
            line = ": ".join(str(entry[key]) for key in ("msg", "error") if key in entry)
    return line if len(line) <= _LONGEST_WORD else f"{line[:_LONGEST_WORD]}…"


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that are free now; all are held until the last is found, so they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
