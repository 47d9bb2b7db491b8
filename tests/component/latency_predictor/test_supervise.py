"""`--supervise`: a process that is killed or hangs is replaced inside its container, which goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

#: Longest wait for anything, seconds.
LIMIT_S = 60

#: A child that says its process id and beats until it is ended; `fails` ends it at once.
SCRIPT = """
import os, signal, sys, time
from latency_predictor.supervise import BEAT_FD, Supervisor

def work():
    if "fails" in sys.argv:
        sys.exit("no such flag")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    beat = int(os.environ[BEAT_FD])
    os.write(beat, b".")
    print(os.getpid(), flush=True)
    while True:
        time.sleep(0.05)
        os.write(beat, b".")

sys.exit(Supervisor(work, hung_s=2.0, start_s=60.0).run())
"""


@pytest.fixture
def supervised() -> Iterator[Any]:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        yield process
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT_S)


def child_of(process: Any) -> int:
    """Return the process id that the next child says."""
    return int(process.stdout.readline())


def test_a_killed_process_is_started_again(supervised: Any) -> None:
    first = child_of(supervised)
    os.kill(first, signal.SIGKILL)
    assert child_of(supervised) != first
    assert supervised.poll() is None


def test_a_hung_process_is_replaced(supervised: Any) -> None:
    first = child_of(supervised)
    os.kill(first, signal.SIGSTOP)
    assert child_of(supervised) != first


def test_sigterm_ends_the_process_and_its_status_is_passed_on(supervised: Any) -> None:
    child_of(supervised)
    supervised.terminate()
    assert supervised.wait(LIMIT_S) == 7


def test_what_never_worked_ends_the_container_with_its_message() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "fails"], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (1, "no such flag")
