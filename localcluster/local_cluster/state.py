"""What a cluster's directory says about it: whether it runs, and where its parts are.

A cluster runs while its supervisor holds the lock; the file beside the lock only describes the cluster.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from local_cluster.images import ImageCommand

#: Environment variable of every process of a cluster, containers included: the cluster's directory.
MARK: Final = "HEADROOM_LOCAL_CLUSTER"
#: The kinds of a node: pods as processes of this machine, or a real kubelet with containers.
PROCESS: Final = "process"
KUBELET: Final = "kubelet"
_LOCK: Final = ".lock"
_LOOKERS_S: Final = 2.0
_POLL_S: Final = 0.05
_STATE: Final = "cluster.json"
_IMAGES: Final = "images.json"


@dataclass(frozen=True, slots=True)
class State:
    """A running cluster: its supervisor's process id, the API server's address, the kind of its node."""

    supervisor: int
    url: str
    node: str = PROCESS


def take_lock(directory: Path) -> int | None:
    """Return a descriptor that holds the directory's lock until it is closed, None if a cluster holds it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOOKERS_S
    while (descriptor := _flock(directory, fcntl.LOCK_EX)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # `is_running` of another process holds the lock for a moment
    return descriptor


def is_running(directory: Path) -> bool:
    """Return whether a supervisor lives in `directory`."""
    if not (directory / _LOCK).exists():
        return False
    descriptor = _flock(directory, fcntl.LOCK_SH)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _flock(directory: Path, kind: int) -> int | None:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def write_state(directory: Path, state: State) -> None:
    """Describe the running cluster; readers see the old file or the whole new one."""
    fresh = directory / f"{_STATE}.new"
    fresh.write_text(json.dumps(asdict(state)))
    fresh.rename(directory / _STATE)


def read_state(directory: Path) -> State | None:
    """Return what the last supervisor wrote, None if the file is absent or unreadable."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return State(**json.loads((directory / _STATE).read_text()))
    return None


def remove_state(directory: Path) -> None:
    """Remove the description of a cluster that has ended."""
    (directory / _STATE).unlink(missing_ok=True)


def write_images(directory: Path, images: Mapping[str, ImageCommand]) -> None:
    """Write, for the node, the program that runs for each image."""
    content = {
        name: {"argv": image.argv, "environment": dict(image.environment)} for name, image in images.items()
    }
    (directory / _IMAGES).write_text(json.dumps(content, indent=1))


def images_file(directory: Path) -> Path:
    """Return the file that `write_images` writes."""
    return directory / _IMAGES


def read_images(path: Path) -> dict[str, ImageCommand]:
    """Read what `write_images` wrote."""
    return {
        name: ImageCommand(tuple(image["argv"]), image["environment"])
        for name, image in json.loads(path.read_text()).items()
    }
