"""One local cluster for all end-to-end tests: real API server, operator as a pod, quickstart, real Envoy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headroom_cli.demo.main import bring_up
from headroom_cli.demo.stage import Stage
from local_cluster.cluster import LocalCluster
from local_cluster.state import PROCESS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The quickstart's pool, Ready, behind its standalone proxy."""
    node = os.environ.get("HEADROOM_TEST_NODE", PROCESS)  # `make test-kubelet` sets it
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), node=node)
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        made, _ = bring_up(cluster)
        yield made
        made.close()
    finally:
        os.chdir(before)
        cluster.stop()
    assert cluster.processes() == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test here the mark and time for a slow machine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))
