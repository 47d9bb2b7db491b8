"""What the node's programs are configured with: files and command lines. Pure.

Every path is one inside the node's mount namespace: STATE there is the cluster's directory.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from local_cluster.control_plane import CLUSTER_DOMAIN
from local_cluster.kubelet.network import Network

STATE: Final = Path("/run/headroom")
NODE: Final = STATE / "node"
CONFIGURATION: Final = NODE / "etc"
CNI_CONFIGURATION: Final = CONFIGURATION / "cni"
KUBECONFIG: Final = CONFIGURATION / "kubeconfig"
PKI: Final = STATE / "pki"
LOGS: Final = STATE / "logs"
#: containerd's description of each running container.
TASKS: Final = NODE / "tasks"
CONTAINERD_SOCKET: Final = Path("/run/containerd/containerd.sock")
PAUSE_IMAGE: Final = "headroom.local/pause:1"
PLUGINS: Final = Path("/usr/lib/cni")
RUNC: Final = Path("/usr/sbin/runc")
_HEALTH: Final = "127.0.0.1"
KUBELET_HEALTH_PORT: Final = 10248
PROXY_HEALTH_PORT: Final = 10256
SCHEDULER_PORT: Final = 10259


def containerd_config() -> str:
    """Return containerd's config.toml."""
    return f"""version = 3
root = "{NODE / "containerd"}"
state = "{TASKS}"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.internal.v1.opt']
path = "{NODE / "opt"}"

[plugins.'io.containerd.cri.v1.runtime']
# An oom_score_adj below one's own needs a capability that a machine may not have.
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{PLUGINS}"]
conf_dir = "{CNI_CONFIGURATION}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{RUNC}"
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"
"""


def cni_config(network: Network) -> str:
    """Return the network configuration of pods.

    Each pod has a pair of interfaces of its own with the node, not a place on a bridge: so every packet
    between pods passes kube-proxy's rules, without a kernel module for it.
    """
    ranges = [[{"subnet": network.pods}]]
    addresses = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return json.dumps({"cniVersion": "1.0.0", "name": "headroom", "plugins": [plugin]}, indent=1)


def kubelet_config(network: Network, cgroup: str) -> str:
    """Return the KubeletConfiguration; `cgroup` is the parent of all pods' groups, such as /headroom-1."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": network.node,
            "healthzBindAddress": _HEALTH,
            "healthzPort": KUBELET_HEALTH_PORT,
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "clusterDNS": [network.node],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": str(CONFIGURATION / "resolv.conf"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(PKI / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(PKI / "node.crt"),
            "tlsPrivateKeyFile": str(PKI / "node.key"),
            "podLogsDir": str(LOGS / "pods"),
            "volumePluginDir": str(NODE / "volume-plugins"),
            # The kubelet cannot measure this file system, and images that it removed could not be pulled.
            "localStorageCapacityIsolation": False,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "64Mi"},
        }
    )


def scheduler_argv(programs: Path) -> tuple[str, ...]:
    """Return the scheduler's command line."""
    return (
        str(programs / "kube-scheduler"),
        f"--kubeconfig={KUBECONFIG}",
        f"--authentication-kubeconfig={KUBECONFIG}",
        f"--authorization-kubeconfig={KUBECONFIG}",
        "--leader-elect=false",
        f"--bind-address={_HEALTH}",
        f"--secure-port={SCHEDULER_PORT}",
        f"--cert-dir={NODE / 'scheduler'}",
    )


def kubelet_argv(programs: Path, network: Network, name: str) -> tuple[str, ...]:
    """Return the kubelet's command line."""
    return (
        str(programs / "kubelet"),
        f"--config={CONFIGURATION / 'kubelet.yaml'}",
        f"--kubeconfig={KUBECONFIG}",
        f"--root-dir={NODE / 'kubelet'}",
        f"--cert-dir={NODE / 'kubelet/pki'}",
        f"--hostname-override={name}",
        f"--node-ip={network.node}",
    )


def proxy_argv(programs: Path, network: Network, name: str) -> tuple[str, ...]:
    """Return kube-proxy's command line."""
    return (
        str(programs / "kube-proxy"),
        f"--kubeconfig={KUBECONFIG}",
        f"--hostname-override={name}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={network.pods}",
        # The table of connections is the machine's: its size is not this node's to set.
        "--conntrack-max-per-core=0",
        "--oom-score-adj=0",
        f"--healthz-bind-address={_HEALTH}:{PROXY_HEALTH_PORT}",
        f"--metrics-bind-address={_HEALTH}:10249",
    )


def containerd_argv(programs: Path) -> tuple[str, ...]:
    """Return containerd's command line."""
    return (str(programs / "containerd"), f"--config={CONFIGURATION / 'containerd.toml'}")


def environment(programs: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the node's programs, which find each other on its PATH."""
    path = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**given, "PATH": path}
