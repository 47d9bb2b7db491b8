"""Makes a base image from Debian's packages, for machines that reach no registry of images. Needs root."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

SUITE: Final = "bookworm"
NAME: Final = f"localhost/headroom-debian-base:{SUITE}"
_PACKAGES: Final = "ca-certificates,python3,python3-pip"
#: Files of packages that the images do not take; licences stay.
_LEFT_OUT: Final = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)


class NoBaseError(Exception):
    """The base image cannot be made here; the message says why."""


def ensure_debian_base(engine: list[str]) -> str:
    """Return the name of the base image, made now unless the engine's storage has it."""
    if (
        subprocess.run(
            [*engine, "inspect", "--type=image", NAME], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return NAME
    if os.geteuid() != 0:
        raise NoBaseError("BASE=debian needs root: it unpacks Debian's packages")
    if shutil.which("mmdebstrap") is None:
        raise NoBaseError("BASE=debian needs mmdebstrap: apt-get install mmdebstrap")
    print(f"making {NAME} from Debian's packages", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "base.tar")
        options = [f"--dpkgopt={option}" for option in _LEFT_OUT]
        _run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                f"--include={_PACKAGES}",
                *options,
                SUITE,
                str(archive),
            ]
        )
        if Path(engine[0]).name == "buildah":
            container = _run([*engine, "from", "scratch"]).strip()
            try:
                _run([*engine, "add", "--quiet", container, str(archive), "/"])
                _run([*engine, "commit", "--quiet", container, NAME])
            finally:
                _run([*engine, "rm", container])
        else:
            _run([*engine, "import", str(archive), NAME])
    return NAME


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoBaseError(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-800:]}")
    return done.stdout
