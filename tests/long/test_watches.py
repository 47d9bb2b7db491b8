"""Watches that are answered with faults: healing is back within 10 s of the end, and health tells the truth.

Each watched kind with each answer for 3 s, all kinds together 20 times for 3 s, and twice with each answer
for 80 s. The operator's resync is out of the way (an hour), so that only its watches can heal. About 30
minutes; `make test-watches ARGS='-k 80'` runs a part.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle

import pytest

from operator_cluster import OperatorProcess, Space, eventually, pool, running_cluster
from operator_watches import BACK_WITHIN, NOTICED_AFTER, RESOURCES, Watcher, heals, is_ready, watched_health
from watch_faults import ANSWERS, WatchFaults

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

POOLS = [f"pool-{number}" for number in range(12)]


@dataclass
class Watched:
    """An operator behind the proxy, with complete pools.

    Each check breaks the next one: the operator would pause before it repairs the same again and again.
    """

    faults: WatchFaults
    process: OperatorProcess
    space: Space
    pools: Iterator[str] = field(default_factory=lambda: cycle(POOLS))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with running_cluster(tmp_path_factory.mktemp("watches")) as cluster:
        faults = WatchFaults(cluster.plane)
        config = faults.kubeconfig(cluster.kubeconfig(), cluster.directory / "faults.kubeconfig")
        space = cluster.space()
        process = OperatorProcess(config, cluster.directory / "operator.log", "--resync-interval=1h")
        for name in POOLS:
            space.create("pool", pool(name))
        for name in POOLS:
            eventually(partial(space.get, "deployment", f"{name}-epp"), name)
        yield Watched(faults, process, space)
        assert process.stop() == 0
        faults.close()


def break_watches(watched: Watched, answer: str, resource: str | None, seconds: float) -> None:
    """Break watches for a while, and see healing come back and health tell the truth."""
    eventually(lambda: is_ready(watched.process), "every watch is open", 60.0)
    with watched_health(watched.process) as health:
        before = watched.faults.refused
        began = time.monotonic()
        with watched.faults.fault(answer, resource):
            time.sleep(seconds)
            ended = time.monotonic()
        assert watched.faults.refused > before, "no watch met the fault"
        heals(watched.space, f"{next(watched.pools)}-epp-config", BACK_WITHIN)
        eventually(lambda: is_ready(watched.process), "ready again", BACK_WITHIN)
    tells_the_truth(health, resource, began, ended)


def tells_the_truth(health: Watcher, resource: str | None, began: float, ended: float) -> None:
    """Check that liveness held, and that readiness named what was down for as long as it was."""
    assert {alive for _, alive, _, _ in health.said} == {200}, "no part was dead"
    during = [said for said in health.said if began + NOTICED_AFTER < said[0] < ended]
    for at, _, ready, body in during:
        assert ready == 503, f"ready {at - began:.1f} s after the watches broke"
        down = {kind.split(".")[0] for kind in body["notWatching"]}
        assert down >= ({resource} if resource else set(RESOURCES)), body["notWatching"]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("resource", RESOURCES)
def test_one_kind_for_3_s(watched: Watched, resource: str, answer: str) -> None:
    break_watches(watched, answer, resource, 3.0)


@pytest.mark.parametrize("turn", range(20))
def test_all_kinds_for_3_s(watched: Watched, turn: int) -> None:
    break_watches(watched, ANSWERS[turn % len(ANSWERS)], None, 3.0)


@pytest.mark.parametrize("turn", range(2))
@pytest.mark.parametrize("answer", ANSWERS)
def test_all_kinds_for_80_s(watched: Watched, answer: str, turn: int) -> None:
    break_watches(watched, answer, None, 80.0)
