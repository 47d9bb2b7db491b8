"""What a kubelet node needs of this machine, and what it has outside of its namespaces: cgroups."""

import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from local_cluster.errors import ToolMissingError
from local_cluster.kubelet.record import NODE_FOLDER, read_record
from local_cluster.kubelet.settings import NODE, PLUGINS, TASKS

_CGROUPS: Final = Path("/sys/fs/cgroup")
_REMOVAL_S: Final = 20.0
_POLL_S: Final = 0.05
#: Debian's package of each program that the node takes from the machine.
_PROGRAMS: Final = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "runc": "runc",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}


def missing_packages() -> list[str]:
    """Return Debian's names of what the node needs and this machine lacks."""
    lacking = {package for program, package in _PROGRAMS.items() if shutil.which(program) is None}
    if not (PLUGINS / "ptp").exists():
        lacking.add("containernetworking-plugins")
    return sorted(lacking)


def require_machine() -> None:
    """Check that a node can run here.

    Raises:
        ToolMissingError: this is not root, or programs are missing; the text says what to do.
    """
    if os.geteuid() != 0:
        raise ToolMissingError(
            "a kubelet node needs root: it makes network interfaces, mounts and cgroups. Run it as root, or "
            "take the default node, which needs no rights (--node=process)"
        )
    if packages := missing_packages():
        raise ToolMissingError(
            f"a kubelet node needs {', '.join(packages)}; on Debian: apt-get install "
            f"--no-install-recommends {' '.join(packages)}"
        )


def make_cgroups(name: str) -> None:
    """Make the parent of the pods' groups in every hierarchy; the kubelet asks that it is there."""
    for hierarchy in _hierarchies():
        (hierarchy / name.strip("/")).mkdir(exist_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove the cgroups and the files of a node whose processes have ended; nothing when there are none."""
    if (record := read_record(directory)) is not None:
        deadline = time.monotonic() + _REMOVAL_S
        for hierarchy in _hierarchies():
            while not _removed(hierarchy / record.cgroup.strip("/")) and time.monotonic() < deadline:
                time.sleep(_POLL_S)  # the kernel has not buried the last process yet
    shutil.rmtree(directory / NODE_FOLDER, ignore_errors=True)


def _removed(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not group.exists()


def _hierarchies() -> list[Path]:
    """Return the roots of all cgroup hierarchies: one on a machine with version 2 alone."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return sorted(
        each for each in _CGROUPS.iterdir() if each.is_dir() and not each.is_symlink() and each.is_mount()
    )


def container_pids(directory: Path, namespace: str, pod: str, container: str) -> list[int]:
    """Return the processes of a running container, the first one first; empty when there is none."""
    annotation = "io.kubernetes.cri"
    wanted = {
        f"{annotation}.sandbox-namespace": namespace,
        f"{annotation}.sandbox-name": pod,
        f"{annotation}.container-name": container,
    }
    for file in (directory / TASKS.relative_to(NODE.parent)).glob("*/k8s.io/*/config.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            task = json.loads(file.read_text())
            if wanted.items() <= task["annotations"].items() and (found := _members(task)):
                return found
    return []


def _members(task: dict[str, dict[str, str]]) -> list[int]:
    group = task["linux"]["cgroupsPath"].strip("/")
    for hierarchy in (_CGROUPS / "memory", _CGROUPS):
        with contextlib.suppress(OSError):
            return sorted(map(int, (hierarchy / group / "cgroup.procs").read_text().split()))
    return []


if __name__ == "__main__":  # for the Makefile: prints the packages that are missing
    sys.stdout.write(" ".join(missing_packages()) + "\n")
