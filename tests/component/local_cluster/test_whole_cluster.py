"""Starting, finding and ending a cluster, by the API and by the command; nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.errors import AlreadyRunningError, NotRunningError
from local_cluster.state import read_state
from local_pods import IMAGES, Kube, eventually, pod


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "c", IMAGES, tied=True)
    yield cluster
    cluster.stop()


def headroom(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "headroom_cli.main", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)


def test_a_second_start_is_refused_and_the_first_can_be_found(cluster: LocalCluster) -> None:
    lines: list[str] = []
    cluster.start(lines.append)
    assert any("node" in line for line in lines)
    with pytest.raises(AlreadyRunningError, match="headroom local down"):
        LocalCluster(cluster.directory, IMAGES).start()
    assert LocalCluster.attach(cluster.directory).url == cluster.url
    assert cluster.kubeconfig.stat().st_mode & 0o077 == 0
    cluster.stop()
    assert cluster.processes() == []
    with pytest.raises(NotRunningError, match="headroom local up"):
        LocalCluster.attach(cluster.directory)
    cluster.stop()


def test_no_process_outlives_a_killed_supervisor(cluster: LocalCluster) -> None:
    cluster.start()
    kube = Kube(cluster)
    kube.apply(pod("family", "sh", "trap '' TERM; setsid sleep 3601 & echo born; while :; do sleep 1; done"))
    kube.await_log("family", "born")
    before = cluster.processes()
    assert len(before) > 5
    state = read_state(cluster.directory)
    assert state is not None
    os.kill(state.supervisor, signal.SIGKILL)
    # The supervisor is a child of this process and stays a zombie, which `processes` leaves out.
    eventually("end of all processes", lambda: not cluster.processes())


def test_a_part_that_dies_ends_the_cluster(cluster: LocalCluster) -> None:
    cluster.start()
    (etcd,) = [pid for pid in cluster.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "etcd"]
    os.kill(etcd, signal.SIGKILL)
    eventually("end of all processes", lambda: not cluster.processes())
    assert "etcd ended" in (cluster.directory / "supervisor.log").read_text()


def test_the_commands_start_describe_and_end_a_cluster(tmp_path: Path) -> None:
    directory = f"--dir={tmp_path / 'c'}"
    try:
        up = headroom("local", "up", directory)
        assert (up.returncode, up.stderr.count("starting")) == (0, 2), up.stderr
        assert "export KUBECONFIG=" in up.stdout
        assert headroom("local", "status", directory).returncode == 0
        path = headroom("local", "kubeconfig", directory).stdout.strip()
        assert "default" in Kube(LocalCluster(tmp_path / "c")).run("get", "namespaces")
        assert path == str(tmp_path / "c" / "kubeconfig")
        no_pod = headroom("local", "logs", "nobody", directory)
        assert (no_pod.returncode, no_pod.stderr.count("\n")) == (1, 1)
    finally:
        down = headroom("local", "down", directory)
    assert down.returncode == 0
    assert LocalCluster(tmp_path / "c").processes() == []
    assert headroom("local", "status", directory).returncode == 1


def test_a_bad_command_line_prints_the_usage() -> None:
    wrong = headroom("local", "sideways")
    assert wrong.returncode == 2
    assert "up" in wrong.stderr


def test_assets_that_lack_a_program_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    up = headroom("local", "up", f"--dir={tmp_path / 'c'}")
    assert up.returncode == 1
    assert "kube-controller-manager" in up.stderr
