"""The process that owns a cluster: starts its parts, watches them, and ends all of them with itself.

Started by LocalCluster. On standard output it writes `progress TEXT` lines while it starts, then `ready` or
`failed TEXT`. A part that ends unasked ends the cluster: one that lacks a part would only mislead its users.
"""

import argparse
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

from local_cluster.binaries import Binaries, ensure_binaries, ensure_node_programs
from local_cluster.control_plane import ControlPlane, is_there
from local_cluster.errors import AlreadyRunningError, LocalClusterError
from local_cluster.kubelet.archives import ensure_archives
from local_cluster.kubelet.machine import require_machine
from local_cluster.kubelet.node import KubeletNode
from local_cluster.node.node import NODE_NAME
from local_cluster.node.objects import condition_is_true
from local_cluster.processes import Child, stop_all
from local_cluster.state import KUBELET, PROCESS, State, images_file, remove_state, take_lock, write_state

_log = logging.getLogger(__name__)
_CHECK_EVERY_S: Final = 0.5
_NODE_GRACE_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


class _StopRequestedError(BaseException):
    """SIGTERM or SIGINT came: unwinds the stack from any point to the clean-up."""


class Supervisor:
    """One cluster in `directory`; `run` returns after SIGTERM or SIGINT, when every part has ended."""

    def __init__(self, directory: Path, node: str, names: str) -> None:
        self._directory = directory
        self._kind = node
        self._names = names
        self._node: Child | None = None
        self._kubelet: KubeletNode | None = None
        self._plane: ControlPlane | None = None

    def run(self) -> None:
        """Start, report, watch, stop.

        Raises:
            LocalClusterError: it could not start, or a part ended unasked.
        """
        if take_lock(self._directory) is None:  # held until this process ends
            message = f"a cluster runs in {self._directory} already; `headroom local down` ends it"
            raise AlreadyRunningError(message)
        try:
            self._start()
            write_line("ready")
            # The process that started this one may end now; a later write to its pipe would fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            while True:
                self._check()
                time.sleep(_CHECK_EVERY_S)
        except _StopRequestedError:
            _log.info("asked to stop")
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            self._stop()

    def _start(self) -> None:
        if self._kind == KUBELET:
            require_machine()
        binaries = ensure_binaries(_progress)
        if self._kind == KUBELET:
            plane = self._start_with_kubelet(binaries)
        else:
            plane = self._start_with_processes(binaries)
        write_state(self._directory, State(os.getpid(), plane.url, self._kind))

    def _start_with_processes(self, binaries: Binaries) -> ControlPlane:
        _progress("starting etcd, the API server and the controller manager")
        self._plane = plane = ControlPlane(self._directory, binaries)
        plane.start()
        _progress("starting the node")
        argv = (sys.executable, "-m", "local_cluster.node")
        flags = (
            f"--kubeconfig={plane.node_kubeconfig}",
            f"--directory={self._directory / 'pods'}",
            f"--logs={plane.log_directory / 'pods'}",
            f"--images={images_file(self._directory)}",
            f"--names={self._names}",
        )
        self._node = Child("node", (*argv, *flags), plane.log_directory / "node.log")
        plane.wait_until(f"/api/v1/nodes/{NODE_NAME}", "the node", self._check)
        return plane

    def _start_with_kubelet(self, binaries: Binaries) -> ControlPlane:
        programs = ensure_node_programs(_progress)
        archives = ensure_archives(programs, _progress)
        _progress("starting containerd, etcd, the API server and the controller manager")
        self._plane = plane = ControlPlane(self._directory, binaries)
        plane.clear()
        self._kubelet = node = KubeletNode(self._directory, programs, archives)
        network = node.begin()
        plane.start(network.addresses)
        _progress("importing the images; starting the kubelet, kube-proxy and the scheduler")
        node.admit(plane)
        plane.wait_until(f"/api/v1/nodes/{NODE_NAME}", "the node", self._check, _is_ready)
        return plane

    def _check(self) -> None:
        if self._plane is not None:
            self._plane.check()
        if self._node is not None:
            self._node.check()
        if self._kubelet is not None:
            self._kubelet.check()

    def _stop(self) -> None:
        if self._node is not None:
            stop_all([self._node], _NODE_GRACE_S)
        if self._kubelet is not None:
            self._kubelet.stop()
        if self._plane is not None:
            self._plane.stop()
        remove_state(self._directory)


def _is_ready(status: int, body: bytes) -> bool:
    return is_there(status, body) and condition_is_true(json.loads(body), "Ready")


def _progress(text: str) -> None:
    write_line(f"progress {text}")


def write_line(line: str) -> None:
    """Write one line for LocalCluster to standard output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _stop_requested(_number: int, _frame: FrameType | None) -> None:
    raise _StopRequestedError


def main() -> int:
    """Run a cluster until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.supervisor", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--node", choices=(PROCESS, KUBELET), default=PROCESS)
    parser.add_argument("--names", choices=("dns", "hosts"), default="dns")
    parser.add_argument("--parent", type=int, default=0, help="end when the process of this id ends")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_requested)
    try:
        if given.parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != given.parent:
                return 0
        Supervisor(given.directory.absolute(), given.node, given.names).run()
    except _StopRequestedError:
        return 0
    except LocalClusterError as error:
        _log.error("%s", error)
        with contextlib.suppress(BrokenPipeError):
            write_line(f"failed {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
