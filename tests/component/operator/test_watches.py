"""Watches that are refused, cut or left hanging: the operator begins them anew and says so meanwhile.

The resync is out of the way (10 minutes), so that only the watches can heal. `make test-watches` tries every
kind with every answer.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from operator_cluster import Cluster, OperatorProcess, Space, eventually, pool
from operator_watches import BACK_WITHIN, heals, is_ready, metric, probe, watched_health
from watch_faults import WatchFaults


@dataclass
class Watched:
    """An operator behind the proxy, with one complete pool."""

    faults: WatchFaults
    process: OperatorProcess
    space: Space


@pytest.fixture(scope="module")
def watched(cluster: Cluster) -> Iterator[Watched]:
    faults = WatchFaults(cluster.plane)
    config = faults.kubeconfig(cluster.kubeconfig(), cluster.directory / "faults.kubeconfig")
    space = cluster.space()
    flags = (f"--namespaces={space.name}", "--resync-interval=10m")
    process = OperatorProcess(config, cluster.directory / "faults.log", *flags)
    space.create("pool", pool("llm"))
    eventually(lambda: space.get("deployment", "llm-epp"))
    yield Watched(faults, process, space)
    assert process.stop() == 0
    faults.close()


@pytest.mark.parametrize(
    ("resource", "answer"),
    [
        ("configmaps", "404"),
        ("configmaps", "410"),
        ("services", "404"),
        ("configmaps", "hung"),
        (None, "410"),
        (None, "503"),
        (None, "cut"),
    ],
    ids=str,
)
def test_healing_is_back_after_a_fault_of_watches(
    watched: Watched, resource: str | None, answer: str
) -> None:
    eventually(lambda: is_ready(watched.process), "every watch is open")
    before = watched.faults.refused
    with watched_health(watched.process) as health:
        with watched.faults.fault(answer, resource):
            time.sleep(3.0)
        assert watched.faults.refused > before, "no watch met the fault"
        heals(watched.space, "llm-epp-config", BACK_WITHIN)
        eventually(lambda: is_ready(watched.process), "ready again")
    assert {alive for _, alive, _, _ in health.said} == {200}, "no part was dead"


def test_readiness_names_the_kind_that_cannot_be_watched(watched: Watched) -> None:
    eventually(lambda: is_ready(watched.process), "every watch is open")
    with watched.faults.fault("404", "configmaps"):

        def told() -> bool:
            status, body = probe(watched.process.address(), "/readyz")
            return status == 503 and "configmaps" in body["notWatching"]

        eventually(told, "readiness says so")
        assert probe(watched.process.address(), "/healthz")[0] == 200, "a restart would not help"
    eventually(lambda: is_ready(watched.process), "ready again")


def test_watches_begin_under_a_uid_without_a_name(cluster: Cluster) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can run a process under another uid")
    config = cluster.kubeconfig()
    space = cluster.space()
    flags = (f"--namespaces={space.name}", "--resync-interval=10m")
    process = OperatorProcess(config, cluster.directory / "nameless.log", *flags, uid=65532)
    try:
        space.create("pool", pool("llm"))
        eventually(lambda: space.get("config", "llm-epp-config"))
        heals(space, "llm-epp-config", BACK_WITHIN)
        eventually(lambda: is_ready(process), "every watch is open")
        assert metric(process.address(), "headroom_operator_watch_starts_total") == 1
    finally:
        assert process.stop() == 0
