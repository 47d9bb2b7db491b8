"""manifests/base on an empty API server: what it makes, and what its roles really allow."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from manifest_files import BASE, DEMO, kustomized

OPERATOR = "system:serviceaccount:headroom-system:headroom-operator"
INSTALLED = ["customresourcedefinitions", "serviceaccounts", "clusterroles", "clusterrolebindings"]


def await_value(probe: Callable[[], Any], limit_s: float = 60) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := probe()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def installed(cluster: Any) -> Any:
    applied = cluster.kubectl("apply", "-k", str(BASE))
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout.count(" created\n") == len(kustomized(BASE))
    waited = cluster.kubectl(
        "wait", "--for=condition=Established", "crd/endpointpickers.headroom.dev", "--timeout=60s"
    )
    assert waited.returncode == 0, waited.stderr
    return cluster


def test_a_second_apply_writes_nothing(installed: Any) -> None:
    path = "/apis/apps/v1/namespaces/headroom-system/deployments/headroom-operator"
    before = installed.resource_versions(*INSTALLED)
    assert "ClusterRole//headroom-epp" in before
    generation = installed.api.get(path).body["metadata"]["generation"]

    again = installed.kubectl("apply", "-k", str(BASE))

    assert again.returncode == 0, again.stderr
    assert again.stdout.count(" unchanged\n") == len(kustomized(BASE))
    assert installed.resource_versions(*INSTALLED) == before
    assert installed.api.get(path).body["metadata"]["generation"] == generation


def test_the_operators_pod_passes_the_namespaces_own_restrictions(installed: Any) -> None:
    pods = "/api/v1/namespaces/headroom-system/pods"

    (pod,) = await_value(lambda: installed.api.get(pods).body["items"])

    assert pod["spec"]["serviceAccountName"] == "headroom-operator"


def test_the_demo_overlay_changes_the_operators_arguments_and_nothing_else(installed: Any) -> None:
    dry = installed.kubectl("diff", "-k", str(DEMO))

    changed = [line for line in dry.stdout.splitlines() if line.startswith(("+ ", "- ", "+\t", "-\t"))]
    assert [line[1:].strip() for line in changed if "generation:" not in line] == ["- --resync-interval=15s"]


ALLOWED = [
    ("patch", "inference.networking.k8s.io", "inferencepools", "", ""),
    ("update", "inference.networking.k8s.io", "inferencepools", "status", ""),
    ("create", "headroom.dev", "endpointpickers", "", ""),
    ("patch", "headroom.dev", "endpointpickers", "status", ""),
    ("watch", "llm-d.ai", "inferenceobjectives", "", ""),
    ("patch", "inference.networking.x-k8s.io", "inferenceobjectives", "status", ""),
    ("delete", "apps", "deployments", "", ""),
    ("create", "rbac.authorization.k8s.io", "rolebindings", "", ""),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", "", "headroom-epp"),
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", ""),
    ("list", "apiextensions.k8s.io", "customresourcedefinitions", "", ""),
]
FORBIDDEN = [
    ("update", "inference.networking.k8s.io", "inferencepools", "", ""),
    ("delete", "inference.networking.k8s.io", "inferencepools", "", ""),
    ("patch", "llm-d.ai", "inferenceobjectives", "", ""),
    ("create", "", "pods", "", ""),
    ("create", "", "pods", "exec", ""),
    ("get", "", "secrets", "", ""),
    ("create", "", "serviceaccounts", "token", ""),
    ("create", "rbac.authorization.k8s.io", "roles", "", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", "", "headroom-epp"),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", "", "cluster-admin"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", "", ""),
    ("create", "apiextensions.k8s.io", "customresourcedefinitions", "", ""),
    ("*", "*", "*", "", ""),
]


def allowed(cluster: Any, user: str, request: tuple[str, ...], namespace: str = "default") -> bool:
    verb, group, resource, subresource, name = request
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "name": name,
        "namespace": namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer.body["status"]["allowed"])


@pytest.mark.parametrize("request_", ALLOWED, ids=lambda r: " ".join(filter(None, r)))
def test_the_operator_may(installed: Any, request_: tuple[str, ...]) -> None:
    assert allowed(installed, OPERATOR, request_)


@pytest.mark.parametrize("request_", FORBIDDEN, ids=lambda r: " ".join(filter(None, r)))
def test_the_operator_may_not(installed: Any, request_: tuple[str, ...]) -> None:
    assert not allowed(installed, OPERATOR, request_)


def bind(cluster: Any, role: str, name: str) -> Any:
    return cluster.kubectl(
        *("--as", OPERATOR, "-n", "default", "create", "rolebinding", name),
        *(f"--clusterrole={role}", "--serviceaccount=default:picker"),
    )


def test_the_operator_binds_a_picker_to_its_role_and_the_picker_reads_there_only(installed: Any) -> None:
    picker = "system:serviceaccount:default:picker"
    read = ("watch", "inference.networking.k8s.io", "inferencepools", "", "")
    assert not allowed(installed, picker, read)

    made = bind(installed, "headroom-epp", "picker")

    assert made.returncode == 0, made.stderr
    await_value(lambda: allowed(installed, picker, read))
    assert allowed(installed, picker, ("list", "", "pods", "", ""))
    assert allowed(installed, picker, ("get", "", "configmaps", "", "x"))
    assert not allowed(installed, picker, read, namespace="kube-system")
    assert not allowed(installed, picker, ("patch", "", "configmaps", "", "x"))
    assert not allowed(installed, picker, ("get", "", "secrets", "", "x"))


@pytest.mark.parametrize("role", ["cluster-admin", "view"])
def test_the_operator_cannot_hand_out_another_role(installed: Any, role: str) -> None:
    refused = bind(installed, role, f"other-{role}")

    assert refused.returncode == 1
    assert "forbidden" in refused.stderr
