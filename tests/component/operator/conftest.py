"""A real control plane with the base manifests, and the operator with nothing but its own ServiceAccount."""

from collections.abc import Iterator

import pytest

from operator_cluster import Cluster, OperatorProcess, Space, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("operator")) as cluster:
        yield cluster


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
