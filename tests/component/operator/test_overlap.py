"""Two installations of the operator on one API server: each namespace has one that works in it.

The second is the base under a namePrefix in another namespace. Their picker images differ, so that two that
work on one pool would be seen to undo each other's work.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from operator_cluster import ROOT, Cluster, OperatorProcess, Space, eventually, kubectl, pool, running_cluster

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
#: Namespace and ServiceAccount.
FIRST = ("headroom-system", "headroom-operator")
SECOND = ("team-b-system", "team-b-headroom-operator")


@dataclass
class Pair:
    """The cluster with both installations applied, and operators that run with the rights of one of them."""

    cluster: Cluster
    stack: ExitStack
    started: list[OperatorProcess] = field(default_factory=list)

    def start(self, installation: tuple[str, str], *namespaces: str) -> OperatorProcess:
        namespace, account = installation
        log = self.cluster.directory / f"{account}-{len(self.started)}.log"
        process = OperatorProcess(
            self.cluster.kubeconfig(account, namespace),
            log,
            f"--namespaces={','.join(namespaces)}",
            f"--epp-image={namespace}:1",
            f"--picker-cluster-role={account.replace('-operator', '-epp')}",
            "--lease-duration=6s",
            "--resync-interval=2s",
        )
        self.started.append(process)
        return process

    def works(self, installation: tuple[str, str], space: Space, name: str) -> bool:
        """Whether the pool's Deployment is as this installation makes it."""
        body = space.get("deployment", f"{name}-epp")
        return body is not None and image_of(body) == f"{installation[0]}:1"

    def writes(self, installation: tuple[str, str], space: Space) -> list[str]:
        return self.cluster.writes(space.name, f"system:serviceaccount:{':'.join(installation)}")


def image_of(deployment: dict[str, object]) -> str:
    spec: object = deployment
    for step in ("spec", "template", "spec", "containers", 0, "image"):
        spec = spec[step]  # type: ignore[index]
    return str(spec)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("overlap")
    with running_cluster(directory) as cluster:
        second = directory / "second"
        second.mkdir()
        base = Path("../" * len(second.resolve().parts[1:])) / (ROOT / "manifests/base").relative_to("/")
        (second / "kustomization.yaml").write_text(
            f"namePrefix: team-b-\nnamespace: team-b-system\nresources: [{base}]\n"
        )
        kubectl(cluster.plane, "apply", "-k", str(second))
        yield cluster


@pytest.fixture
def pair(installed: Cluster) -> Iterator[Pair]:
    with ExitStack() as stack:
        made = Pair(installed, stack)
        yield made
        for process in made.started:
            if process.running:
                assert process.stop() == 0
            traces = [line for line in process.lines() if "exc_info" in line]
            assert not traces, traces[:3]
        for namespace, name in (FIRST, SECOND):
            installed.api.request("DELETE", LEASES.format(namespace, name))


def stands_aside(process: OperatorProcess, other: tuple[str, str], namespaces: str) -> bool:
    status, told = process.readiness()
    return status == 503 and told["standsAside"] == {"/".join(other): namespaces}


def ready(process: OperatorProcess) -> bool:
    return process.readiness()[0] == 200


def test_the_younger_writes_nothing_says_so_and_takes_over_when_the_older_is_killed(pair: Pair) -> None:
    space = pair.cluster.space()
    older = pair.start(FIRST)
    space.create("pool", pool("llm"))
    eventually(lambda: pair.works(FIRST, space, "llm") and ready(older), "the first works")

    younger = pair.start(SECOND)
    eventually(lambda: stands_aside(younger, FIRST, "all namespaces"), "the second stands aside")
    seen = younger.resyncs()
    eventually(lambda: younger.resyncs() >= seen + 2, "two full passes")
    space.delete("config", "llm-epp-config")
    eventually(lambda: space.get("config", "llm-epp-config"), "healed")
    assert pair.writes(SECOND, space) == []
    assert pair.works(FIRST, space, "llm")

    assert younger.readiness()[1]["status"] == "aside"
    assert younger.metric("headroom_operator_stands_aside") == 1
    eventually(lambda: older.metric("headroom_operator_younger_operators") == 1)
    assert ready(older)
    (line,) = [each for each in younger.lines() if each.get("reason") == "StandsAside"]
    assert "headroom-system/headroom-operator" in line["message"]
    events = pair.cluster.api.get(f"/api/v1/namespaces/{SECOND[0]}/events").body["items"]
    assert [(e["reason"], e["involvedObject"]["name"]) for e in events if e["reason"] == "StandsAside"] == [
        ("StandsAside", SECOND[1])
    ]
    lease = LEASES.format(*SECOND)

    def noted() -> str:
        found = pair.cluster.api.get(lease).body["metadata"]["annotations"]["headroom.dev/stands-aside"]
        return str(found)

    eventually(noted, "the Lease says so, too")
    assert noted() == "all namespaces: headroom-system/headroom-operator"

    older.kill()
    eventually(lambda: pair.works(SECOND, space, "llm") and ready(younger), "the second takes over")
    space.delete("config", "llm-epp-config")
    eventually(lambda: space.get("config", "llm-epp-config"), "healed by the second")

    before = pair.writes(FIRST, space)
    back = pair.start(FIRST)
    eventually(lambda: stands_aside(back, SECOND, "all namespaces"), "the first is the younger one now")
    assert pair.works(SECOND, space, "llm")
    assert pair.writes(FIRST, space) == before


def test_only_the_namespaces_in_common_are_left_to_the_older(pair: Pair) -> None:
    a, b, c = (pair.cluster.space() for _ in range(3))
    older = pair.start(FIRST, a.name, b.name)
    eventually(lambda: ready(older))
    younger = pair.start(SECOND, b.name, c.name)
    eventually(lambda: stands_aside(younger, FIRST, b.name), "the second stands aside")

    for space in (a, b, c):
        space.create("pool", pool("llm"))

    eventually(lambda: pair.works(FIRST, a, "llm") and pair.works(FIRST, b, "llm"))
    eventually(lambda: pair.works(SECOND, c, "llm"))
    assert pair.writes(SECOND, b) == []


def test_disjoint_installations_both_work(pair: Pair) -> None:
    a, b = pair.cluster.space(), pair.cluster.space()
    one, other = pair.start(FIRST, a.name), pair.start(SECOND, b.name)
    for space in (a, b):
        space.create("pool", pool("llm"))

    eventually(lambda: pair.works(FIRST, a, "llm") and pair.works(SECOND, b, "llm"))
    eventually(lambda: ready(one) and ready(other))
    assert pair.writes(FIRST, b) == pair.writes(SECOND, a) == []
    binding = b.get("binding", "llm-epp") or {}
    assert binding["roleRef"]["name"] == "team-b-headroom-epp"
