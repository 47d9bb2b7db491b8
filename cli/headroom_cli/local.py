"""`headroom local ...`: a cluster on this machine. Texts and exit codes only; local_cluster does the work."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from local_cluster.binaries import ensure_binaries, ensure_helm, ensure_node_programs, ensure_pubsub_fake
from local_cluster.cluster import LocalCluster
from local_cluster.errors import LocalClusterError, NotRunningError
from local_cluster.kubelet.archives import ensure_archives
from local_cluster.kubelet.machine import require_machine
from local_cluster.kubelet.record import is_kubelet, parts_of
from local_cluster.state import KUBELET, PROCESS

DEFAULT_DIRECTORY: Final = Path(".local/cluster")
_CHUNK: Final = 1 << 16

Groups: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Command = Callable[[argparse.Namespace], int]


def add_commands(groups: Groups) -> None:
    """Add the group `local`."""
    group = groups.add_parser(
        "local",
        help="a Kubernetes cluster on this machine",
        description="Run a real control plane (etcd, API server, controller manager) and a node that runs "
        "the pods of Headroom's images as processes of this machine, or a real kubelet. Begin with "
        "`headroom local up`.",
    )
    commands = group.add_subparsers(required=True, metavar="COMMAND")
    add_node_option(_add(commands, "up", up, "start an empty cluster and leave it running"))
    _add(commands, "down", down, "end the cluster and every process of it")
    _add(commands, "status", status, "say whether the cluster runs and how to reach it (exit status 1: no)")
    _add(commands, "kubeconfig", kubeconfig, "print the path of the administrator's kubeconfig")
    logs = _add(commands, "logs", logs_of, "print the log of a container, over all its restarts")
    logs.add_argument("pod", metavar="POD")
    logs.add_argument("-c", "--container", help="needed when the pod has several")
    logs.add_argument("-n", "--namespace", default="default")
    build_help = "build the control plane's programs now (once; `up` does it when needed)"
    command = commands.add_parser("build", help=build_help, description=build_help)
    command.add_argument(
        "--helm", action="store_true", help="build Helm as well (for the tests of the chart)"
    )
    command.add_argument(
        "--pubsub-fake",
        action="store_true",
        help="build nothing but Google's fake Pub/Sub server (for the tests of the batch subscriber)",
    )
    add_node_option(command)
    command.set_defaults(run=build)


def add_node_option(command: argparse.ArgumentParser) -> None:
    """Add --node: what runs the pods."""
    command.add_argument(
        "--node",
        choices=(PROCESS, KUBELET),
        default=PROCESS,
        help="what runs the pods: processes of this machine, or a real kubelet with containers, which needs "
        "root (default: %(default)s)",
    )


def _add(commands: Groups, name: str, run: Command, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument(
        "--dir", type=Path, default=DEFAULT_DIRECTORY, help="the cluster's folder (default: %(default)s)"
    )
    command.set_defaults(run=run)
    return command


def progress(line: str) -> None:
    """Show one line of progress on standard error."""
    print(f"  {line}", file=sys.stderr, flush=True)


def up(given: argparse.Namespace) -> int:
    """Start a cluster that outlives this command."""
    began = time.monotonic()
    cluster = LocalCluster(given.dir, node=given.node)
    cluster.start(progress)
    print(f"The cluster is up after {time.monotonic() - began:.0f} s. Talk to it:")
    print(f"  export KUBECONFIG={cluster.kubeconfig}")
    print("  kubectl get pods -A")
    print(f"Logs are in {cluster.log_directory}; `headroom local down` ends it.")
    return 0


def down(given: argparse.Namespace) -> int:
    """End the cluster; return 0 also when none runs."""
    cluster = LocalCluster(given.dir)
    was_running = bool(cluster.processes())
    cluster.stop()
    print("The cluster is down." if was_running else f"No cluster runs in {cluster.directory}.")
    return 0


def status(given: argparse.Namespace) -> int:
    """Print whether the cluster runs, its address and its number of processes; return 1 when it does not."""
    try:
        cluster = LocalCluster.attach(given.dir)
    except NotRunningError as error:
        print(error)
        return 1
    print(f"running     {cluster.url}, {len(cluster.processes())} processes")
    for part in parts_of(cluster.directory):
        ends = f"; last end: {part.last_end}" if part.last_end else ""
        print(f"part        {part.name}: {'runs' if part.runs else 'is down'}, start {part.starts}{ends}")
    print(f"kubeconfig  {cluster.kubeconfig}")
    print(f"logs        {cluster.log_directory}")
    return 0


def kubeconfig(given: argparse.Namespace) -> int:
    """Print the path, for `KUBECONFIG=$(headroom local kubeconfig)`."""
    print(LocalCluster.attach(given.dir).kubeconfig)
    return 0


def build(given: argparse.Namespace) -> int:
    """Build what is lacking: the control plane's programs, a kubelet node's and its images, Helm.

    With `--pubsub-fake` nothing but that.
    """
    if given.pubsub_fake:
        print(f"The fake Pub/Sub server is {ensure_pubsub_fake(progress)}.")
        return 0
    if given.node == KUBELET:
        require_machine()
    print(f"The control plane's programs are in {ensure_binaries(progress).etcd.parent}.")
    if given.node == KUBELET:
        programs = ensure_node_programs(progress)
        print(f"The node's programs are in {programs}.")
        print(f"The images are in {ensure_archives(programs, progress)[0].parent}.")
    if given.helm:
        print(f"Helm is {ensure_helm(progress)}.")
    return 0


def logs_of(given: argparse.Namespace) -> int:
    """Copy a container's log to standard output."""
    cluster = LocalCluster(given.dir)
    if is_kubelet(cluster.directory):
        message = "on a kubelet, `kubectl logs` prints the logs of containers"
        raise LocalClusterError(message)
    container = given.container or _only_container(cluster, given.namespace, given.pod)
    log = cluster.container_log(given.namespace, given.pod, container)
    try:
        with log.open("rb") as file:
            while chunk := file.read(_CHUNK):
                sys.stdout.buffer.write(chunk)
    except OSError as error:
        message = f"no log of container {container} of pod {given.namespace}/{given.pod}: {error.strerror}"
        raise LocalClusterError(message) from error
    return 0


def _only_container(cluster: LocalCluster, namespace: str, pod: str) -> str:
    known = cluster.logged_containers(namespace, pod)
    if len(known) == 1:
        return known[0]
    if not known:
        message = f"there is no log of a pod {namespace}/{pod} in {cluster.log_directory}"
    else:
        message = f"pod {namespace}/{pod} has several containers; choose one with -c: {', '.join(known)}"
    raise LocalClusterError(message)
