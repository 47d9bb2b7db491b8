"""charts/headroom with the real Helm: the same objects as manifests/base, its life on a real API server."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.binaries import ensure_helm
from manifest_files import BASE, ROOT, objects

CHART = ROOT / "charts" / "headroom"
GOLDEN = Path(__file__).parent / "golden"
#: What Helm's users expect on every object and the base does not have.
OF_THE_CHART = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "helm.sh/resource-policy",
}


@pytest.fixture(scope="session")
def helm() -> str:
    """The command, built by `make helm` once; building it here takes minutes."""
    return str(ensure_helm(lambda line: print(line, file=sys.stderr)))


def run(helm: str, *arguments: str, kubeconfig: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
    return subprocess.run(
        [helm, *arguments], capture_output=True, text=True, timeout=100, check=False, env=environment
    )


def rendered(helm: str, release: str, namespace: str, *values: str) -> list[dict[str, Any]]:
    done = run(helm, "template", release, str(CHART), "-n", namespace, *values)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def by_key(found: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in found
    }


def without_chart_labels(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: without_chart_labels(each) for key, each in value.items() if key not in OF_THE_CHART}
        return {key: each for key, each in kept.items() if (key, each) != ("annotations", {})}
    return [without_chart_labels(each) for each in value] if isinstance(value, list) else value


def kustomized_by_kubectl(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def test_the_chart_passes_helms_own_lint(helm: str) -> None:
    done = run(helm, "lint", "--strict", str(CHART))

    assert done.returncode == 0, done.stdout + done.stderr


def test_with_default_values_the_chart_makes_what_the_base_makes(helm: str) -> None:
    chart = by_key(rendered(helm, "headroom", "headroom-system"))
    base = by_key(kustomized_by_kubectl(BASE))
    del base[("Namespace", "", "headroom-system")]  # `helm install --create-namespace` makes it

    assert without_chart_labels(chart) == without_chart_labels(base)


@pytest.mark.parametrize("case", sorted(GOLDEN.glob("*.values.yaml")), ids=lambda path: path.name)
def test_rendered_objects_are_those_of_the_golden_file(helm: str, case: Path) -> None:
    """HEADROOM_UPDATE_GOLDEN=1 writes the files; review the diff."""
    golden = case.with_name(case.name.replace(".values.yaml", ".objects.yaml"))
    found = [
        each
        for each in rendered(helm, "team-a", "team-a-system", "-f", str(case))
        if each["kind"] != "CustomResourceDefinition"
    ]
    if os.environ.get("HEADROOM_UPDATE_GOLDEN"):
        golden.write_text(yaml.safe_dump_all(found, sort_keys=False), "utf-8")

    assert found == objects(golden)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("namspaces={a}", "namspaces"),
        ("manage=some", "manage"),
        ("workers=65", "workers"),
        ("resyncInterval=soon", "resyncInterval"),
        ("image.digest=latest", "digest"),
        ("namespaces={Not_A_Name}", "namespaces"),
        ("resyncInterval=1m30", "resyncInterval"),
        ("registry=https://registry.example.com", "registry"),
        ("image.tag=a b", "tag"),
        ("epp.image.tag=a b", "tag"),
        ("resources.limit.cpu=1", "limit"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(helm: str, value: str, says: str) -> None:
    done = run(helm, "template", "headroom", str(CHART), "--set", value)

    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize("interval", ["1m30s", "60", "1.5m"])
def test_an_interval_is_written_as_the_operator_reads_it(helm: str, interval: str) -> None:
    done = run(helm, "template", "headroom", str(CHART), "--set", f"resyncInterval={interval}")

    assert done.returncode == 0, done.stderr
    assert f"--resync-interval={interval}\n" in done.stdout


@pytest.mark.parametrize("registry", ["localhost:5000", "registry.example.com/team/ai"])
def test_a_registry_may_have_a_port_and_a_path(helm: str, registry: str) -> None:
    done = run(helm, "template", "headroom", str(CHART), "--set", f"registry={registry}")

    assert done.returncode == 0, done.stderr
    assert f"{registry}/headroom-operator:" in done.stdout


def test_a_kustomization_with_a_prefix_and_another_namespace_is_consistent(tmp_path: Path) -> None:
    link = tmp_path / "base"
    subprocess.run(["cp", "-r", str(BASE), str(link)], check=True)
    (tmp_path / "kustomization.yaml").write_text(
        "namePrefix: team-a-\nnamespace: team-a-system\nresources: [base]\n", "utf-8"
    )
    found = by_key(kustomized_by_kubectl(tmp_path))

    role = found[("ClusterRole", "", "team-a-headroom-operator")]
    (bindable,) = (rule["resourceNames"] for rule in role["rules"] if rule["verbs"] == ["bind"])
    deployment = found[("Deployment", "team-a-system", "team-a-headroom-operator")]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert bindable == ["team-a-headroom-epp"]
    assert environment["PICKER_CLUSTER_ROLE"] == "team-a-headroom-epp"
    assert ("ClusterRole", "", "team-a-headroom-epp") in found


class TestLifeOfARelease:
    """One cluster, in this order: install, upgrade, roll back, a second release beside it, uninstall."""

    def status(self, helm: str, cluster: Any) -> dict[str, Any]:
        done = run(helm, "status", "headroom", "-n", "hr", "-o", "json", kubeconfig=cluster.kubeconfig)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def arguments(self, cluster: Any) -> list[str]:
        path = "/apis/apps/v1/namespaces/hr/deployments/headroom-operator"
        containers = cluster.api.get(path).body["spec"]["template"]["spec"]["containers"]
        told: list[str] = containers[0]["args"]
        return told

    def can(self, cluster: Any, account: str, verb: str, resource: str, *more: str) -> bool:
        user = f"--as=system:serviceaccount:{account}"
        done = cluster.kubectl("auth", "can-i", verb, resource, user, *more)
        return bool(done.stdout.strip() == "yes")

    @pytest.mark.parametrize(("values", "warned"), [((), True), (("--set", "registry=r.example.com"), False)])
    def test_the_notes_warn_of_images_without_a_registry(
        self, helm: str, cluster: Any, values: tuple[str, ...], warned: bool
    ) -> None:
        dry = ("install", "headroom", str(CHART), "--dry-run=client")
        done = run(helm, *dry, *values, kubeconfig=cluster.kubeconfig)

        assert done.returncode == 0, done.stderr
        assert ("No registry is set" in done.stdout) is warned

    def test_install(self, helm: str, cluster: Any) -> None:
        done = run(
            helm, "install", "headroom", str(CHART), "-n", "hr", "--create-namespace",
            "--set", "gieCrds.install=true", kubeconfig=cluster.kubeconfig,
        )  # fmt: skip

        assert done.returncode == 0, done.stderr
        assert self.status(helm, cluster)["info"]["status"] == "deployed"
        assert self.can(cluster, "hr:headroom-operator", "create", "deployments.apps", "-A")
        assert self.can(cluster, "hr:headroom-operator", "bind", "clusterroles/headroom-epp", "-A")
        crds = cluster.kubectl("get", "crd", "-o", "name").stdout
        assert "endpointpickers.headroom.dev" in crds
        assert "inferencepools.inference.networking.k8s.io" in crds

    def test_upgrade_and_rollback(self, helm: str, cluster: Any) -> None:
        assert "--resync-interval=30s" not in self.arguments(cluster)

        upgraded = run(
            helm, "upgrade", "headroom", str(CHART), "-n", "hr", "--reuse-values",
            "--set", "resyncInterval=30s", kubeconfig=cluster.kubeconfig,
        )  # fmt: skip
        assert upgraded.returncode == 0, upgraded.stderr
        assert "--resync-interval=30s" in self.arguments(cluster)

        back = run(helm, "rollback", "headroom", "1", "-n", "hr", kubeconfig=cluster.kubeconfig)
        assert back.returncode == 0, back.stderr
        assert "--resync-interval=30s" not in self.arguments(cluster)

    def test_a_second_release_beside_it_has_rights_in_its_namespaces_only(
        self, helm: str, cluster: Any
    ) -> None:
        for name in ("a", "b"):
            assert cluster.kubectl("create", "namespace", name).returncode == 0

        done = run(
            helm, "install", "team-a", str(CHART), "-n", "team-a-system", "--create-namespace",
            "--set", "namespaces={a}", "--set", "crds.install=false", kubeconfig=cluster.kubeconfig,
        )  # fmt: skip

        assert done.returncode == 0, done.stderr
        account = "team-a-system:team-a-headroom-operator"
        assert self.can(cluster, account, "create", "deployments.apps", "-n", "a")
        assert not self.can(cluster, account, "create", "deployments.apps", "-n", "b")
        assert not self.can(cluster, account, "list", "pods", "-A")
        assert self.can(cluster, account, "watch", "customresourcedefinitions.apiextensions.k8s.io", "-A")
        assert self.can(cluster, account, "bind", "clusterroles/team-a-headroom-epp", "-n", "a")
        assert not self.can(cluster, account, "bind", "clusterroles/headroom-epp", "-n", "a")

    def test_crds_of_another_installation_are_not_replaced(self, helm: str, cluster: Any) -> None:
        done = run(
            helm, "install", "third", str(CHART), "-n", "third", "--create-namespace", "--set",
            "crds.install=false", "--set", "gieCrds.install=true", kubeconfig=cluster.kubeconfig,
        )  # fmt: skip

        assert done.returncode != 0
        assert "gieCrds.install=false" in done.stderr

    def test_uninstall_keeps_the_crds_and_their_objects(self, helm: str, cluster: Any) -> None:
        for release, namespace in (("team-a", "team-a-system"), ("headroom", "hr")):
            done = run(helm, "uninstall", release, "-n", namespace, kubeconfig=cluster.kubeconfig)
            assert done.returncode == 0, done.stderr

        left = cluster.kubectl(
            "get", "clusterroles,clusterrolebindings,deployments", "-A", "-o", "name"
        ).stdout
        assert "headroom" not in left
        assert "endpointpickers.headroom.dev" in cluster.kubectl("get", "crd", "-o", "name").stdout
