"""An API server of its own for each module that installs something: installing is what is tested."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from api_server import ApiServer
from control_plane import running_control_plane
from local_cluster.tools import find_kubectl


@dataclass(frozen=True, slots=True)
class Cluster:
    """An empty cluster: kubectl against it, and the API itself."""

    api: ApiServer
    kubeconfig: Path

    def kubectl(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = find_kubectl()
        if command is None:
            pytest.fail("kubectl is not there: `make setup` installs it")
        return subprocess.run(
            [str(command), "--kubeconfig", str(self.kubeconfig), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def resource_versions(self, *kinds: str) -> dict[str, str]:
        """What each object's resourceVersion is; any write changes it."""
        path = "{.kind}/{.metadata.namespace}/{.metadata.name} {.metadata.resourceVersion}"
        template = "{range .items[*]}" + path + '{"\\n"}{end}'
        listed = self.kubectl("get", ",".join(kinds), "-A", "-o", f"jsonpath={template}")
        assert listed.returncode == 0, listed.stderr
        lines = [line.split() for line in listed.stdout.splitlines()]
        return {line[0]: line[1] for line in lines}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield Cluster(ApiServer(plane), plane.kubeconfig)
