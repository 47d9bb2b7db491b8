"""Google's own Pub/Sub client library, in a folder of its own: its files collide with those of xds-protos.

`make batch-tools` runs this module, which installs the library from its lock.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_LOCK = Path(__file__).parents[1] / "component" / "batch" / "pubsub-client.lock"


def folder() -> Path:
    """Return where the library of this lock and Python is, or will be."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    version = hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]
    return base / "headroom" / "pubsub-client" / f"{version}-{sys.implementation.cache_tag}"


def installed() -> Path:
    """Return the folder; a missing one fails the test with what installs it."""
    assert folder().is_dir(), "Google's Pub/Sub client is not installed; `make batch-tools` installs it"
    return folder()


def install() -> None:
    """Install the library, unless it is there."""
    if folder().is_dir():
        return
    folder().parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder().parent, prefix=".installing-"))
    try:
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        argv += ["--require-hashes", "--no-deps", "--target", str(draft / "made"), "-r", str(_LOCK)]
        subprocess.run(argv, check=True)
        (draft / "made").rename(folder())
    finally:
        shutil.rmtree(draft, ignore_errors=True)


if __name__ == "__main__":
    install()
