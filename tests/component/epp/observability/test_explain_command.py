"""`kubectl headroom explain` on a real API server, with kubectl: the picker is read through its proxy."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from decided_picker import decided, serving
from local_cluster.tools import search_path
from pool_space import Space

LABELS = {"app": "picker"}


def kubectl(space: Space, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl as a user does: it finds the plugin on the path."""
    path = os.pathsep.join((str(Path(sys.executable).parent), search_path()))
    return subprocess.run(
        ["kubectl", "headroom", "explain", *arguments, "--kubeconfig", str(space.kubeconfig)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def own_address() -> str:
    """Return an address of this machine that the API server proxies to: neither loopback nor link-local."""
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            if each.family is socket.AF_INET and not each.address.startswith(("127.", "169.254.")):
                return str(each.address)
    pytest.skip("this machine has loopback addresses only")


def picker_pod(space: Space, port: int, address: str) -> None:
    """Make the picker's Service and a pod of it that runs."""
    base = f"/api/v1/namespaces/{space.namespace}"
    ports = [{"name": "grpc", "port": 9002}]
    space.ask(
        "POST",
        f"{base}/services",
        {"metadata": {"name": "picker"}, "spec": {"selector": LABELS, "ports": ports}},
    )
    container = {
        "name": "epp",
        "image": "epp",
        "ports": [{"name": "http-metrics", "containerPort": port}],
    }
    pod = {
        "metadata": {"name": "picker-0", "labels": LABELS},
        "spec": {"containers": [container], "nodeName": "nowhere"},
    }
    space.ask("POST", f"{base}/pods", pod)
    space.set_status("picker-0", address, ready=True)


def test_the_plugin_reads_the_picker_through_the_api_server(space: Space) -> None:
    address = own_address()
    with serving(decided(), address) as port:
        space.pool("llama", {"app": "vllm"})
        failed = kubectl(space, "llama", "-n", space.namespace)
        assert failed.returncode == 1
        assert 'services "picker" not found' in failed.stderr
        picker_pod(space, port, address)
        listed = kubectl(space, "llama", "-n", space.namespace)
        assert listed.returncode == 0, listed.stderr
        assert [line.split()[1] for line in listed.stdout.splitlines()] == ["REQUEST", "bad", "good"]
        one = kubectl(space, "llama", "good", "-n", space.namespace)
        assert one.returncode == 0, one.stderr
        assert "by picker-0" in one.stdout
        assert "queue-scorer x2" in one.stdout
        unknown = kubectl(space, "llama", "unknown", "-n", space.namespace)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "no decision on request unknown is kept" in unknown.stderr
    gone = kubectl(space, "llama", "-n", space.namespace)
    assert gone.returncode == 1
    assert f"pod {space.namespace}/picker-0 cannot be read through the API server" in gone.stderr
    missing = kubectl(space, "other", "-n", space.namespace)
    assert missing.returncode == 1
    assert '"other" not found' in missing.stderr
    assert len(missing.stderr.splitlines()) == 1
