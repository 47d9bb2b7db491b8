"""A local cluster from outside: start one, attach to one that runs, find its processes and logs, end it.

The cluster itself is another process (`supervisor`); this module only talks to it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil

from local_cluster.errors import AlreadyRunningError, LocalClusterError, NotRunningError, StartError
from local_cluster.images import DEFAULT_IMAGES, ImageCommand
from local_cluster.kubelet import machine
from local_cluster.kubelet.machine import remove_leftovers
from local_cluster.kubelet.record import read_record
from local_cluster.node.worker import pod_folder
from local_cluster.processes import log_summary
from local_cluster.state import MARK, PROCESS, is_running, read_state, remove_state, write_images

_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05
#: etcd alone takes 64 MiB at once; the rest is for logs.
_DISK_BYTES: Final = 256 << 20


def _ignore(_: str) -> None:
    return None


class LocalCluster:
    """A control plane and a node in one directory.

    `tied` ends the cluster with the thread that called `start`; otherwise it stays until a call of `stop`.
    `names` is how Service names resolve inside containers: "dns" (by a DNS server, or by hosts files where
    this user may not bind port 53) or "hosts" (by hosts files). `node` is PROCESS, for pods as processes of
    this machine, or KUBELET, for a real kubelet with containers: that needs root, and `images` and `names`
    have no meaning there.
    """

    def __init__(
        self,
        directory: Path,
        images: Mapping[str, ImageCommand] = DEFAULT_IMAGES,
        *,
        tied: bool = False,
        names: str = "dns",
        node: str = PROCESS,
    ) -> None:
        self.directory: Path = directory.absolute()
        self.kubeconfig: Path = self.directory / "kubeconfig"
        self.log_directory: Path = self.directory / "logs"
        self.audit_log: Path = self.log_directory / "audit.log"
        self._images = images
        self._tied = tied
        self._names = names
        self._node = node
        self._supervisor: subprocess.Popen[str] | None = None

    @classmethod
    def attach(cls, directory: Path) -> "LocalCluster":
        """Return the cluster that runs in `directory`, whichever process started it.

        Raises:
            NotRunningError: there is none.
        """
        cluster = cls(directory)
        _ = cluster.url
        return cluster

    @property
    def url(self) -> str:
        """The API server's address.

        Raises:
            NotRunningError: the cluster does not run.
        """
        state = read_state(self.directory) if is_running(self.directory) else None
        if state is None:
            message = f"no cluster runs in {self.directory}; `headroom local up` starts one"
            raise NotRunningError(message)
        return state.url

    def start(self, progress: Callable[[str], None] = _ignore) -> None:
        """Start an empty cluster; return when the API server and the node are ready.

        `progress` gets a line for each slow step, and every ten seconds of the first build.

        Raises:
            LocalClusterError: it could not be started; nothing is left running.
        """
        if is_running(self.directory):
            message = f"a cluster runs in {self.directory} already; `headroom local down` ends it"
            raise AlreadyRunningError(message)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (free := shutil.disk_usage(self.directory).free) < _DISK_BYTES:
            message = (
                f"a cluster needs {_DISK_BYTES >> 20} MiB of disk, and {self.directory} has {free >> 20}: "
                "make room, or choose another directory with --dir"
            )
            raise StartError(message)
        write_images(self.directory, self._images)
        log = self.directory / "supervisor.log"
        argv = [sys.executable, "-m", "local_cluster.supervisor", f"--directory={self.directory}"]
        argv += [f"--names={self._names}", f"--node={self._node}"]
        argv += [f"--parent={os.getpid()}"] if self._tied else []
        with log.open("wb") as errors:
            supervisor = subprocess.Popen(  # noqa: S603 - this interpreter, no shell
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ | {MARK: str(self.directory)},
            )
        try:
            _follow(supervisor, log, progress)
        except BaseException:
            supervisor.terminate()
            supervisor.wait()
            raise
        self._supervisor = supervisor

    def stop(self) -> None:
        """End every process of the cluster; does nothing when none is left.

        Raises:
            LocalClusterError: a process could not be ended.
        """
        state = read_state(self.directory)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        if state is not None and is_running(self.directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.supervisor, signal.SIGTERM)
        while is_running(self.directory) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while (left := self.processes()) and time.monotonic() < deadline + _STOP_TIMEOUT_S:
            time.sleep(_POLL_S)
        if left:
            message = f"could not end process(es) {', '.join(map(str, left))}"
            raise LocalClusterError(message)
        if self._supervisor is not None:  # a child of this process, a zombie until it is awaited
            self._supervisor.wait()
        remove_leftovers(self.directory)
        remove_state(self.directory)

    def processes(self) -> list[int]:
        """Return the ids of all live processes of this cluster.

        Each has its directory in its environment, or, being in a container of a kubelet, a forebear that has.
        """
        marked: set[int] = set()
        parents: dict[int, int] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE:
                    parents[process.pid] = process.ppid()
                    if process.environ().get(MARK) == str(self.directory):
                        marked.add(process.pid)
        return [pid for pid in parents if _descends(pid, marked, parents)]

    def container_pids(self, namespace: str, pod: str, container: str) -> list[int]:
        """Return the processes of a container, the main one first; empty when it does not run."""
        if read_record(self.directory) is not None:
            return machine.container_pids(self.directory, namespace, pod, container)
        file = self.directory / "pods" / pod_folder((namespace, pod)) / "containers" / container / "pid"
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            return [each.pid for each in psutil.Process(int(file.read_text())).children(recursive=True)]
        return []

    def container_log(self, namespace: str, pod: str, container: str) -> Path:
        """Return the file that a container of that name writes to, over all its restarts."""
        return self.log_directory / "pods" / pod_folder((namespace, pod)) / f"{container}.log"

    def logged_containers(self, namespace: str, pod: str) -> list[str]:
        """Return the names of the pod's containers that have a log."""
        folder = self.log_directory / "pods" / pod_folder((namespace, pod))
        return sorted(file.stem for file in folder.glob("*.log"))


def _descends(pid: int, marked: set[int], parents: Mapping[int, int]) -> bool:
    while pid in parents:
        if pid in marked:
            return True
        pid = parents[pid]
    return False


def _follow(supervisor: subprocess.Popen[str], log: Path, progress: Callable[[str], None]) -> None:
    """Pass progress on until the supervisor says that the cluster is ready."""
    assert supervisor.stdout is not None  # noqa: S101 - Popen got stdout=PIPE
    with supervisor.stdout as lines:
        for line in lines:
            word, _, text = line.rstrip("\n").partition(" ")
            if word == "ready":
                return
            if word == "failed":
                raise StartError(text)
            progress(text)
    message = f"the supervisor ended: {log_summary(log)}"
    raise StartError(message)
