"""Become another program that dies with its parent: `python -I -S launch.py PARENT_PID ARGV...`.

Runs as a script of its own, so that nothing happens between fork and exec in a threaded process. It starts a
session (so signals of the user's terminal do not reach the program) and asks the kernel for SIGKILL at the
parent's death. It must not import anything of this package.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Replace this process by `argv[2:]`, tied to the parent whose id is `argv[1]`."""
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(argv[1]):
        sys.exit("the parent is gone")  # it died before prctl took effect
    os.execv(argv[2], argv[2:])  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    main(sys.argv)
