"""200 SIGTERMs at random moments under load, none of which needs SIGKILL. About 20 minutes on two cores."""

import pytest

from operator_cluster import running_cluster
from operator_signals import terminate_at_random

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def test_no_sigterm_needs_a_sigkill(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_cluster(tmp_path_factory.mktemp("sigterm")) as cluster:
        assert terminate_at_random(cluster, times=200, seed=20261201) == []
