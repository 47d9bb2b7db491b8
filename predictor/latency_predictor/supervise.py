"""Runs a command in a child process and starts it again when it ends or hangs: the flag `--supervise`.

A container that ends, or that its liveness probe kills, makes its pod unready, and with it a picker that
could serve without predictions. Inside a container that goes on, a failed process is replaced unseen. Only
what never worked ends the container, so that a wrong flag or image shows in the pod's status.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

#: The flag, and the variable by which the child knows the pipe for its beats.
FLAG: Final = "--supervise"
BEAT_FD: Final = "HEADROOM_BEAT_FD"
#: Seconds between two beats of the child's event loop.
BEAT_S: Final = 1.0
#: Seconds without a beat after which the child is killed; before its first beat.
HUNG_S: Final = 30.0
START_S: Final = 180.0
#: Seconds before a start: at first, at most; a child that lived longer than RESET_S starts at once.
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
RESET_S: Final = 60.0


class Supervisor:
    """Keeps one child alive. `hung_s` and `start_s` as HUNG_S and START_S."""

    def __init__(self, work: Callable[[], None], *, hung_s: float = HUNG_S, start_s: float = START_S) -> None:
        self._work = work
        self._hung_s = hung_s
        self._start_s = start_s
        self._child = 0
        self._ends = False
        self._has_worked = False

    def run(self) -> int:
        """Supervise until SIGTERM or SIGINT; return the exit status of the last child."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)
        pause = FIRST_PAUSE_S
        while True:
            begun = time.monotonic()
            status = self._run_child()
            if self._ends or not self._has_worked:
                return status
            if time.monotonic() - begun > RESET_S:
                pause = FIRST_PAUSE_S
            _say(f"the process ended with status {status}; it is started again")
            time.sleep(pause)
            if self._ends:
                return status
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _run_child(self) -> int:
        """Start the child and wait for its end, by itself or because it hung."""
        beats, beat = os.pipe()
        child = os.fork()
        if not child:
            os.close(beats)
            self._be_child(beat)
        os.close(beat)
        self._child = child
        if self._ends:  # the signal came between the two lines above
            os.kill(child, signal.SIGTERM)
        heard, limit = time.monotonic(), self._start_s
        while True:
            left = heard + limit - time.monotonic()
            readable, _, _ = select.select([beats], [], [], max(0.0, left))
            if readable and os.read(beats, 4096):
                heard, limit, self._has_worked = time.monotonic(), self._hung_s, True
            elif readable:  # closed: the child is ending
                break
            elif time.monotonic() >= heard + limit:
                _say("the process does not answer; it is killed")
                os.kill(child, signal.SIGKILL)
                break
        os.close(beats)
        return self._reap(child)

    def _be_child(self, beat: int) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ[BEAT_FD] = str(beat)
        status = 1
        try:
            self._work()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                _say(end.code)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, child: int) -> int:
        """Return the child's exit status, 128 + N after signal N; take in what it left, as process 1 must."""
        _, waited = os.waitpid(child, 0)
        self._child = 0
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        code = os.waitstatus_to_exitcode(waited)
        return code if code >= 0 else 128 - code

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._ends = True
        if self._child:
            os.kill(self._child, number)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_supervised(work: Callable[[], None]) -> None:
    """Run `work`; in a supervised child where the command line says so. It must import what is large."""
    if FLAG in sys.argv[1:]:
        sys.exit(Supervisor(work).run())
    work()
