"""SIGTERM ends the operator under load. `make test-sigterm` sends 200."""

from operator_cluster import Cluster
from operator_signals import terminate_at_random


def test_sigterm_is_heeded_under_load(cluster: Cluster) -> None:
    assert terminate_at_random(cluster, times=3, seed=7) == []
