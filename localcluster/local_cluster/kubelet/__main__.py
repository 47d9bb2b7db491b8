"""The node's first process, process 1 of its PID namespace: `python -m local_cluster.kubelet`.

Started by the supervisor in new network, mount and PID namespaces. It furnishes the mount namespace, starts
containerd and imports the images, and starts the rest once the supervisor has written NODE_FILE and
KUBECONFIG. When it ends, the kernel ends every process of the node, and its mounts and network go with them.
"""

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from dnslib import DNSRecord

from local_cluster.errors import LocalClusterError, StartError
from local_cluster.kubelet import settings
from local_cluster.kubelet.namespace import furnish
from local_cluster.kubelet.network import Network
from local_cluster.kubelet.parts import Parts
from local_cluster.kubelet.record import NODE_NAME, PARTS_FILE, Record, record_file

_log = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 0.1
_ANSWER_S: Final = 3.0
_CONTAINERD_S: Final = 60.0


def _serve(directory: Path, programs: Path, archives: Sequence[Path]) -> None:
    parts = Parts(settings.LOGS, settings.STATE / PARTS_FILE, settings.environment(programs, os.environ))
    _write("containerd.toml", settings.containerd_config())
    ctr = (str(programs / "ctr"), f"--address={settings.CONTAINERD_SOCKET}", "--namespace=k8s.io")
    alive = _command_succeeds((*ctr, f"--timeout={_ANSWER_S:.0f}s", "version"))
    parts.add("containerd", settings.containerd_argv(programs), alive)
    _await(parts, alive, _CONTAINERD_S, "containerd")
    for archive in archives:
        _import(ctr, archive)
    _await(parts, settings.KUBECONFIG.exists, None, "the API server")
    record = Record.read(record_file(settings.STATE))
    network = Network(record.network)
    settings.CNI_CONFIGURATION.mkdir(exist_ok=True)
    _write("cni/headroom.conflist", settings.cni_config(network))
    _write("kubelet.yaml", settings.kubelet_config(network, record.cgroup))
    _write("resolv.conf", "")
    parts.add(
        "dns",
        (
            *(sys.executable, "-m", "local_cluster.kubelet.dns"),
            *(f"--kubeconfig={settings.KUBECONFIG}", f"--address={network.node}"),
        ),
        _answers_names(network.node),
    )
    http = "http://127.0.0.1"
    parts.add(
        "kubelet",
        settings.kubelet_argv(programs, network, NODE_NAME),
        _answers(f"{http}:{settings.KUBELET_HEALTH_PORT}/healthz"),
    )
    parts.add(
        "kube-proxy",
        settings.proxy_argv(programs, network, NODE_NAME),
        _answers(f"{http}:{settings.PROXY_HEALTH_PORT}/livez"),
    )
    parts.add(
        "kube-scheduler",
        settings.scheduler_argv(programs),
        _answers(f"https://127.0.0.1:{settings.SCHEDULER_PORT}/livez"),
    )
    _log.info("the node of %s is complete", directory)
    while True:
        parts.reap_orphans()
        parts.look_after()
        time.sleep(_LOOK_EVERY_S)


def _await(parts: Parts, happened: Callable[[], bool], limit_s: float | None, what: str) -> None:
    began = time.monotonic()
    while not happened():
        parts.reap_orphans()
        parts.look_after()
        if limit_s is not None and time.monotonic() - began > limit_s:
            message = f"{what} did not answer in {limit_s:.0f} s; see {settings.LOGS}"
            raise StartError(message)
        time.sleep(_LOOK_EVERY_S)


def _import(ctr: tuple[str, ...], archive: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(  # noqa: S603 - containerd's own client
        [*ctr, "images", "import", "--snapshotter=overlayfs", str(archive)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        message = f"containerd does not take {archive}: {done.stderr.strip()[-500:]}"
        raise StartError(message)
    _log.info("imported %s in %.1f s", archive.name, time.monotonic() - began)


def _write(name: str, text: str) -> None:
    (settings.CONFIGURATION / name).write_text(text)


def _command_succeeds(argv: Sequence[str]) -> Callable[[], bool]:
    def succeeds() -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            done = subprocess.run(argv, capture_output=True, timeout=_ANSWER_S + 1, check=False)  # noqa: S603
            return done.returncode == 0
        return False

    return succeeds


def _answers(url: str) -> Callable[[], bool]:
    """Return a check of a health page on loopback; the certificate of an https page is not checked."""
    context = ssl._create_unverified_context() if url.startswith("https:") else None  # noqa: S323

    def answers() -> bool:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(url, timeout=_ANSWER_S, context=context) as response:  # noqa: S310
                return bool(response.status == 200)
        return False

    return answers


def _answers_names(address: str) -> Callable[[], bool]:
    query = bytes(DNSRecord.question("kubernetes.default.svc.cluster.local").pack())

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as asker:
            asker.settimeout(_ANSWER_S)
            asker.sendto(query, (address, 53))
            return bool(asker.recv(512))
        return False

    return answers


def _stop(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> int:
    """Run the node until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.kubelet", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="the cluster's folder")
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--images", required=True, help="JSON list of image archives")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o022)
    signal.signal(signal.SIGTERM, _stop)
    try:
        furnish(given.directory)
        _serve(given.directory, given.programs, [Path(each) for each in json.loads(given.images)])
    except (LocalClusterError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
