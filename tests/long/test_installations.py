"""Two installations on one local cluster, both operators running and each serving a pool.

The first comes from the chart and is upgraded, rolled back and removed; the second is the base under a
namePrefix. The steps follow each other in this order. `make test-installations`; about a minute.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane import running_cluster
from headroom_cli.demo.api import ClusterApi, wait_for
from headroom_cli.demo.audit import AuditLog
from headroom_cli.demo.load import Load
from headroom_cli.demo.scenarios import one_request
from headroom_cli.demo.stage import Stage
from local_cluster.binaries import ensure_helm

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "headroom"
FIRST = "system:serviceaccount:hr:headroom-operator"
SECOND = "system:serviceaccount:team-b-system:team-b-headroom-operator"
LIMIT_S = 180.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@dataclass
class Installations:
    """The cluster, with a stage for the pool of each namespace."""

    team_a: Stage
    team_b: Stage
    helm: str
    folder: Path

    def run_helm(self, *arguments: str) -> None:
        environment = os.environ | {"KUBECONFIG": str(self.team_a.cluster.kubeconfig)}
        done = subprocess.run(
            [self.helm, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr

    def package(self, version: str, change: Callable[[Path], None] = lambda _: None) -> str:
        """Return a package of the chart under another version, with a change."""
        copy = self.folder / f"chart-{version}"
        shutil.copytree(CHART, copy)
        change(copy)
        self.run_helm("package", str(copy), "--version", version, "--destination", str(self.folder))
        return str(self.folder / f"headroom-{version}.tgz")

    def operator_arguments(self) -> list[str]:
        body = self.team_a.api.get("/apis/apps/v1/namespaces/hr/deployments/headroom-operator")
        assert body is not None
        arguments: list[str] = body["spec"]["template"]["spec"]["containers"][0]["args"]
        return arguments

    def written(self, user: str) -> set[str]:
        """Return the namespaces in which a user wrote something."""
        found = set()
        for line in self.team_a.cluster.audit_log.read_text().splitlines():
            entry = json.loads(line)
            if entry["user"]["username"] == user and entry["verb"] in {"create", "patch", "update", "delete"}:
                found.add(entry.get("objectRef", {}).get("namespace", ""))
        return found - {""}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installations]:
    helm = str(ensure_helm(lambda line: print(line, file=sys.stderr)))
    with running_cluster(tmp_path_factory.mktemp("installations")) as cluster:
        api = ClusterApi(cluster.kubeconfig)
        stages = [
            Stage(cluster, api, AuditLog(cluster.audit_log), namespace=name) for name in ("team-a", "team-b")
        ]
        for stage in stages:
            stage.kubectl("create", "namespace", stage.namespace)
        yield Installations(stages[0], stages[1], helm, tmp_path_factory.mktemp("packages"))
        api.close()


def serve(stage: Stage) -> None:
    """Apply the quickstart with one model server, and await a request's answer."""
    text = (ROOT / "manifests/examples/quickstart/quickstart.yaml").read_text()
    stage.apply_text(text.replace("replicas: 3", "replicas: 1"))
    stage.await_condition("Ready", "True", limit_s=LIMIT_S)
    wait_for("a routed request", lambda: one_request(stage), limit_s=60)


def heals(stage: Stage) -> None:
    path = stage.path("ConfigMap", "vllm-qwen-epp-config")
    before = stage.api.get(path)
    assert before is not None
    stage.kubectl("delete", "-n", stage.namespace, "configmap", "vllm-qwen-epp-config")

    def again() -> bool:
        found = stage.api.get(path)
        return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

    wait_for("the ConfigMap again", again, limit_s=60)


def without_lease_rights(chart: Path) -> None:
    """Make the chart one of a version that had no Leases."""
    file = chart / "templates" / "rbac-operator.yaml"
    parts = file.read_text().split("\n---\n")
    file.write_text(
        "\n---\n".join(
            each for each in parts if "kind: Role\n" not in each and "kind: RoleBinding\n" not in each
        )
    )


def test_a_chart_of_an_earlier_version_installs_and_its_operator_serves_a_pool(both: Installations) -> None:
    both.run_helm(
        "install", "headroom", both.package("0.0.9", without_lease_rights), "--namespace=hr",
        "--create-namespace", "--set=namespaces={team-a},gieCrds.install=true,resyncInterval=20s",
        "--wait", "--timeout=170s",
    )  # fmt: skip
    serve(both.team_a)


def test_an_upgrade_with_other_values_costs_no_request_and_rolls_no_picker(both: Installations) -> None:
    picker = both.team_a.picker_pod()["metadata"]["uid"]
    with Load(both.team_a.proxy_url(), in_flight=4) as load:
        load.await_served(20)
        both.run_helm(
            "upgrade", "headroom", both.package("0.0.10"), "--namespace=hr", "--reuse-values",
            "--set=resyncInterval=5s", "--wait", "--timeout=170s",
        )  # fmt: skip
        load.await_served(20)
        sent = load.stop()

    assert [result.error or result.status for result in sent if not result.ok] == []
    assert "--resync-interval=5s" in both.operator_arguments()
    assert both.team_a.picker_pod()["metadata"]["uid"] == picker
    heals(both.team_a)


def test_a_second_installation_with_a_prefix_works_beside_it(both: Installations) -> None:
    overlay = both.folder / "team-b"
    overlay.mkdir()
    base = os.path.relpath(ROOT / "manifests" / "base", overlay.resolve())
    patch = "- {op: add, path: /spec/template/spec/containers/0/args/-, value: --namespaces=team-b}"
    kustomization = {
        "namePrefix": "team-b-",
        "namespace": "team-b-system",
        "resources": [base],
        "patches": [{"target": {"kind": "Deployment", "name": "headroom-operator"}, "patch": patch}],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    both.team_b.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(overlay))
    both.team_b.kubectl(
        "rollout", "status", "-n", "team-b-system", "deployment/team-b-headroom-operator", "--timeout=120s"
    )

    serve(both.team_b)
    for stage in (both.team_a, both.team_b):
        heals(stage)
        wait_for("a routed request", lambda stage=stage: one_request(stage), limit_s=60)  # type: ignore[misc]

    assert both.written(FIRST) == {"hr", "team-a"}
    assert both.written(SECOND) == {"team-b-system", "team-b"}
    binding: dict[str, Any] = both.team_b.api.get(both.team_b.path("RoleBinding", "vllm-qwen-epp")) or {}
    assert binding["roleRef"]["name"] == "team-b-headroom-epp"
    leases = both.team_b.api.items(
        "/apis/coordination.k8s.io/v1/leases?labelSelector=headroom.dev/record%3Doperator"
    )
    scopes = [each["metadata"]["annotations"]["headroom.dev/namespaces"] for each in leases]
    assert sorted(scopes) == ["team-a", "team-b"]


def test_a_rollback_restores_the_earlier_values_and_the_operator_works_on(both: Installations) -> None:
    both.run_helm("rollback", "headroom", "1", "--namespace=hr", "--wait", "--timeout=170s")

    assert "--resync-interval=20s" in both.operator_arguments()
    heals(both.team_a)
    assert one_request(both.team_a)


def test_a_removed_release_leaves_pickers_serving_and_the_other_installation_at_work(
    both: Installations,
) -> None:
    both.run_helm("uninstall", "headroom", "--namespace=hr", "--wait", "--timeout=170s")

    assert both.team_a.api.items("/apis/apps/v1/namespaces/hr/deployments") == []
    assert one_request(both.team_a)
    heals(both.team_b)
    assert one_request(both.team_b)
