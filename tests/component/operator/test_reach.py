"""An operator without a right, without a CRD, or without an API server: up, and saying so."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from api_server import MERGE_PATCH
from inference_api.crd import ENDPOINT_PICKER, INFERENCE_OBJECTIVE
from operator_cluster import CRDS, Cluster, OperatorProcess, Space, established, eventually, picker, pool

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/headroom-operator"


@contextmanager
def without(cluster: Cluster, resource: str, verb: str) -> Iterator[None]:
    """Take one verb on one resource from the operator, for a while."""
    rules = cluster.api.get(ROLE).body["rules"]
    reduced = []
    for rule in rules:
        if resource not in rule["resources"]:
            reduced.append(rule)
            continue
        others = [name for name in rule["resources"] if name != resource]
        if others:
            reduced.append({**rule, "resources": others})
        left = [name for name in rule["verbs"] if name != verb]
        reduced.append({**rule, "resources": [resource], "verbs": left})
    assert cluster.api.request("PATCH", ROLE, {"rules": reduced}, MERGE_PATCH).code == 200
    try:
        yield
    finally:
        assert cluster.api.request("PATCH", ROLE, {"rules": rules}, MERGE_PATCH).code == 200


def health(process: OperatorProcess) -> dict[str, Any]:
    with urllib.request.urlopen(process.address() + "/healthz", timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_a_right_taken_away_is_named_and_its_return_noticed(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("pool", pool("llm"))
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")
    with without(cluster, "rolebindings", "watch"):
        eventually(lambda: space.condition("llm", "ResolvedRefs")[:2] == ("False", "AccessDenied"))
        message = space.condition("llm", "ResolvedRefs")[2]
        assert "watch rolebindings.rbac.authorization.k8s.io" in message
        assert space.condition("llm", "Ready")[1] == "AccessDenied"
        assert health(operator)["rightsMissing"] == ["watch rolebindings.rbac.authorization.k8s.io"]
        space.delete("config", "llm-epp-config")
        eventually(lambda: space.get("config", "llm-epp-config"), "the rest is healed all the same")
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")
    space.delete("binding", "llm-epp")
    eventually(lambda: space.get("binding", "llm-epp"), "watched again")


def test_pools_that_cannot_be_seen_are_not_said_to_be_gone(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("pool", pool("llm"))
    eventually(lambda: space.condition("llm", "Accepted")[0] == "True")
    with without(cluster, "inferencepools", "list"):
        eventually(lambda: space.condition("llm", "Accepted")[:2] == ("False", "AccessDenied"))
        assert "list inferencepools.inference.networking.k8s.io" in space.condition("llm", "Accepted")[2]
        assert "deployment/llm-epp" in space.children()
    eventually(lambda: space.condition("llm", "Accepted")[0] == "True")


def test_settings_that_cannot_be_read_are_not_replaced_by_defaults(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("picker", picker("llm", image="mine:1"))
    space.create("pool", pool("llm"))
    eventually(lambda: space.get("deployment", "llm-epp"))
    with without(cluster, "endpointpickers", "list"):
        eventually(lambda: health(operator)["rightsMissing"] == ["list endpointpickers.headroom.dev"])
        eventually(lambda: space.word("llm") == "AccessDenied")
        containers = (space.get("deployment", "llm-epp") or {})["spec"]["template"]["spec"]["containers"]
        assert containers[0]["image"] == "mine:1"
    eventually(lambda: not health(operator)["rightsMissing"])
    eventually(lambda: space.condition("llm", "Accepted")[0] == "True")


def test_an_operator_that_starts_without_a_right_is_up_and_says_so(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    with without(cluster, "services", "list"):
        log = cluster.directory / "reduced.log"
        process = OperatorProcess(cluster.kubeconfig(), log, "--manage=annotated", "--namespaces=nowhere")
        try:
            eventually(lambda: health(process)["rightsMissing"] == ["list services"])
            assert "services" not in health(process)["watching"]
            assert process.running
        finally:
            assert process.stop() == 0


def test_a_crd_that_goes_and_comes_is_noticed(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("pool", pool("llm"))
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")
    name = INFERENCE_OBJECTIVE.definition()["metadata"]["name"]
    cluster.api.request("DELETE", f"{CRDS}/{name}")
    eventually(lambda: "not installed" in space.condition("llm", "ResolvedRefs")[2], "objectives missed")
    assert space.condition("llm", "ResolvedRefs")[0] == "True"
    eventually(lambda: cluster.api.get(f"{CRDS}/{name}").code == 404)
    assert cluster.api.create(CRDS, INFERENCE_OBJECTIVE.definition()).code == 201
    eventually(lambda: established(cluster.api, name))
    body = {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": "gold"},
        "spec": {"poolRef": {"name": "llm"}, "priority": 3},
    }
    eventually(lambda: cluster.api.create(space.path("objective"), body).code in {201, 409})

    def in_table() -> bool:
        return "gold" in (space.get("config", "llm-epp-priorities") or {})["data"]["table.json"]

    eventually(in_table, "the objective in the table")


def test_without_our_own_crd_the_pool_itself_says_so(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    name = ENDPOINT_PICKER.definition()["metadata"]["name"]
    cluster.api.request("DELETE", f"{CRDS}/{name}")
    eventually(lambda: cluster.api.get(f"{CRDS}/{name}").code == 404)
    space.create("pool", pool("llm"))
    eventually(lambda: space.word("llm") == "KindNotInstalled")
    eventually(lambda: space.get("deployment", "llm-epp"), "the picker runs all the same")
    assert cluster.api.create(CRDS, ENDPOINT_PICKER.definition()).code == 201
    eventually(lambda: established(cluster.api, name))
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")
    assert operator.running


def test_an_operator_that_finds_no_api_server_waits_and_says_so(cluster: Cluster) -> None:
    config = json.loads(cluster.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    target = cluster.directory / "nobody.kubeconfig"
    target.write_text(json.dumps(config))
    process = OperatorProcess(target, cluster.directory / "nobody.log")
    try:
        eventually(lambda: [line for line in process.lines() if "resync failed" in line["message"]])
        assert health(process)["status"] == "starting"
        assert process.running
    finally:
        assert process.stop() == 0


def test_an_operator_whose_account_is_gone_says_what_to_do(cluster: Cluster, space: Space) -> None:
    account = "/api/v1/namespaces/headroom-system/serviceaccounts"
    assert cluster.api.create(account, {"metadata": {"name": "short-lived"}}).code == 201
    process = OperatorProcess(cluster.kubeconfig("short-lived"), cluster.directory / "revoked.log")
    try:
        process.address()
        assert cluster.api.request("DELETE", f"{account}/short-lived").code == 200
        eventually(lambda: [line for line in process.lines() if "token is not valid" in line["message"]])
        assert process.running
    finally:
        assert process.stop() == 0


def test_an_operator_without_any_way_to_an_api_server_ends_with_a_sentence(cluster: Cluster) -> None:
    process = OperatorProcess(cluster.directory / "missing", cluster.directory / "missing.log")
    eventually(lambda: not process.running)
    (line,) = process.lines()
    assert line["level"] == "ERROR"
    assert "--kubeconfig" in line["message"]
    assert "exc_info" not in line


@contextmanager
def unreachable_webhook(cluster: Cluster, space: Space, resource: str) -> Iterator[None]:
    """Have every write of the resource in that namespace asked about where nobody answers."""
    hook = {
        "name": "gone.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}},
    }
    configuration = {"metadata": {"name": space.name}, "webhooks": [hook]}
    assert cluster.api.create(WEBHOOKS, configuration).code == 201
    probe = space.path("config") + "?dryRun=All"
    eventually(lambda: cluster.api.create(probe, {"metadata": {"name": "probe"}}).code == 500, "in force")
    try:
        yield
    finally:
        assert cluster.api.request("DELETE", f"{WEBHOOKS}/{space.name}").code == 200


def test_a_webhook_that_does_not_answer_is_told_and_the_rest_is_made(cluster: Cluster, space: Space) -> None:
    with unreachable_webhook(cluster, space, "configmaps"):
        space.create("pool", pool("llm"))
        eventually(lambda: space.condition("llm", "ResolvedRefs")[:2] == ("False", "ApplyFailed"))
        assert "gone.example.com" in space.condition("llm", "ResolvedRefs")[2]
        assert "deployment/llm-epp" in space.children()
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")


def test_a_namespace_that_is_being_deleted_is_no_news(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    pools = [f"p{number}" for number in range(3)]
    for name in pools:
        space.create("pool", pool(name))
    stuck = pool("stuck")
    stuck["metadata"]["finalizers"] = ["example.com/stuck"]
    space.create("pool", stuck)
    wanted = {f"deployment/{name}-epp" for name in (*pools, "stuck")}
    eventually(lambda: wanted <= space.children(), "all taken up")
    # A pool with a finalizer is there for as long as the namespace is, and every event of it makes a pass.
    assert cluster.api.request("DELETE", f"/api/v1/namespaces/{space.name}").code == 200
    eventually(lambda: not space.children(), "all that the operator made is gone")
    seen = operator.resyncs()
    eventually(lambda: operator.resyncs() >= seen + 2, "two resyncs over what is stuck")
    space.edit("pool", "stuck", {"op": "remove", "path": "/metadata/finalizers"})
    mine = [line for line in operator.lines() if str(line.get("pool", "")).startswith(f"{space.name}/")]
    assert [line for line in mine if line["level"] in {"WARNING", "ERROR"}] == []


def test_a_pool_that_does_not_need_a_missing_right_is_not_blamed(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("pool", pool("plain"))
    space.create("picker", picker("proxied", proxy={"mode": "Deployment"}))
    space.create("pool", pool("proxied"))
    for name in ("plain", "proxied"):
        eventually(lambda n=name: space.condition(n, "ResolvedRefs")[0] == "True")  # type: ignore[misc]
    with without(cluster, "inferencepools/status", "update"):
        eventually(lambda: space.condition("proxied", "ResolvedRefs")[:2] == ("False", "AccessDenied"))
        assert "update inferencepools/status" in space.condition("proxied", "ResolvedRefs")[2]
        assert space.condition("plain", "ResolvedRefs")[0] == "True"
    eventually(lambda: space.condition("proxied", "ResolvedRefs")[0] == "True")


def test_an_endpoint_picker_that_only_another_crd_admits_is_told_once(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    path = f"{CRDS}/{ENDPOINT_PICKER.definition()['metadata']['name']}"
    place = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/proxy/properties/mode"
    values: Any = cluster.api.get(path).body
    for part in f"{place}/enum".removeprefix("/").split("/"):
        values = values[int(part)] if isinstance(values, list) else values[part]

    def admit(modes: object) -> None:
        steps = [{"op": "replace", "path": f"{place}/enum", "value": modes}]
        assert cluster.api.request("PATCH", path, steps, "application/json-patch+json").code == 200

    admit([*values, "DaemonSet"])
    try:
        space.create("pool", pool("llm"))
        eventually(lambda: "deployment/llm-epp" in space.children())
        odd = {"metadata": {"name": "llm"}, "spec": {"proxy": {"mode": "DaemonSet"}}}
        patch = space.path("picker", "llm"), odd, MERGE_PATCH
        eventually(lambda: cluster.api.request("PATCH", *patch).code == 200, "the API server takes it")
        eventually(lambda: space.condition("llm", "Accepted")[:2] == ("False", "InvalidEndpointPicker"))
        assert "spec.proxy.mode" in space.condition("llm", "Accepted")[2]
        assert "deployment/llm-epp" in space.children(), "what runs is left as it is"
        space.merge("picker", "llm", {"spec": {"proxy": {"mode": "None"}}})
        eventually(lambda: space.condition("llm", "Accepted")[0] == "True")
    finally:
        admit(values)
    mine = [line for line in operator.lines() if line.get("pool") == f"{space.name}/llm"]
    assert [line for line in mine if line["level"] in {"WARNING", "ERROR"}] == []
