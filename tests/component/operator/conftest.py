"""A real control plane with the base manifests, and the operator with nothing but its own ServiceAccount."""

from collections.abc import Iterator
from functools import partial

import pytest

from api_server import ApiServer
from control_plane import running_control_plane
from inference_api.crd import RESOURCES
from operator_cluster import CRDS, ROOT, Cluster, OperatorProcess, Space, established, eventually, kubectl


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("operator")
    with running_control_plane(directory / "plane") as plane:
        api = ApiServer(plane)
        for resource in RESOURCES:
            answer = api.create(CRDS, resource.definition())
            assert answer.code == 201, answer.message
        for resource in RESOURCES:
            name = resource.definition()["metadata"]["name"]
            eventually(partial(established, api, name), f"{name} established")
        kubectl(plane, "apply", "-k", str(ROOT / "manifests" / "base"))
        yield Cluster(plane, api, directory)


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Iterator[OperatorProcess]:
    process = OperatorProcess(cluster.kubeconfig(), cluster.directory / "operator.log")
    process.address()
    yield process
    assert process.running, process.log.read_text()[-3000:]
    assert process.stop() == 0
    traces = [line for line in process.lines() if "exc_info" in line]
    assert not traces, traces[:3]


@pytest.fixture
def space(cluster: Cluster, operator: OperatorProcess) -> Space:
    return cluster.space()
