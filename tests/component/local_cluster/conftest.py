"""One cluster for the tests of this folder."""

from collections.abc import Iterator

import pytest

from control_plane import running_cluster
from local_pods import IMAGES, Kube


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), IMAGES) as cluster:
        yield Kube(cluster)
