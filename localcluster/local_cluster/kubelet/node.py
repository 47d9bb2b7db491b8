"""The kubelet node as its supervisor sees it: a process tree in namespaces of its own."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from local_cluster.control_plane import ControlPlane, write_kubeconfig
from local_cluster.errors import StartError
from local_cluster.kubelet import settings
from local_cluster.kubelet.machine import make_cgroups, remove_leftovers
from local_cluster.kubelet.network import Network, connect
from local_cluster.kubelet.record import NODE_FOLDER, Record, record_file
from local_cluster.pki import Pair
from local_cluster.processes import Child

_BEGIN_S: Final = 20.0
_POLL_S: Final = 0.02


class KubeletNode:
    """One node. `begin` makes its namespaces, `admit` lets it join the cluster, `stop` ends all of it."""

    def __init__(self, directory: Path, programs: Path, archives: Sequence[Path]) -> None:
        self._directory = directory
        self._programs = programs
        self._archives = archives
        self._child: Child | None = None

    def begin(self) -> Network:
        """Start the node's first process and connect its network. It imports the images meanwhile.

        Raises:
            StartError: a namespace or the network could not be made.
        """
        remove_leftovers(self._directory)
        node = self._directory / NODE_FOLDER
        logs = self._directory / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        for folder in (node / "etc", logs / "pods"):
            folder.mkdir(parents=True)
        (self._directory / "pki").mkdir(mode=0o700, exist_ok=True)
        unshare = shutil.which("unshare") or "/usr/bin/unshare"
        namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        self._child = Child(
            "node",
            (
                *(unshare, *namespaces, "--propagation=private"),
                *(sys.executable, "-m", "local_cluster.kubelet"),
                f"--directory={self._directory}",
                f"--programs={self._programs}",
                f"--images={json.dumps([str(each) for each in self._archives])}",
            ),
            logs / "node.log",
        )
        network = connect(self._first_process())
        record = Record(network.number, f"/headroom-{network.number}-{os.getpid()}")
        record.write(record_file(self._directory))
        make_cgroups(record.cgroup)
        return network

    def admit(self, plane: ControlPlane) -> None:
        """Give the node its credentials: the kubelet, the scheduler and the rest start with them."""
        inside = settings.PKI
        target = self._directory / settings.KUBECONFIG.relative_to(settings.STATE)
        fresh = target.with_suffix(".new")
        write_kubeconfig(fresh, plane.url, inside / "ca.crt", Pair(inside / "node.crt", inside / "node.key"))
        fresh.rename(target)

    def check(self) -> None:
        """Raise StartError if the node has ended."""
        if self._child is not None:
            self._child.check()

    def stop(self) -> None:
        """End every process of the node, and remove its cgroups and files."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        remove_leftovers(self._directory)

    def _first_process(self) -> int:
        """Wait for the first process in the new namespaces; return its id on this machine."""
        assert self._child is not None  # noqa: S101 - `begin` has just made it
        deadline = time.monotonic() + _BEGIN_S
        own = Path("/proc/self/ns/net").readlink()
        while time.monotonic() < deadline:
            self._child.check()
            for each in psutil.Process(self._child.pid).children():
                if Path(f"/proc/{each.pid}/ns/net").readlink() != own:
                    return each.pid
            time.sleep(_POLL_S)
        message = "the node's namespaces were not made in time"
        raise StartError(message)
