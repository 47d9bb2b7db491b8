"""The manifests of the batch subscriber: flags that the commands take, rights, references, bounds."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from batch_subscriber.commands import serve
from batch_subscriber.opening import CANCELLATIONS, QUEUES, RESULTS
from batch_subscriber.queues.redis_streams import GROUP
from batch_subscriber.settings import Settings, parse
from inference_api.inference_objective import InferenceObjective
from inference_api.names import METRICS_PORT, PROXY_PORT
from inference_operator.core.naming import proxy_name
from manifest_files import MANIFESTS, QUICKSTART, kustomized, objects, one

QUEUE_FOLDERS = ("sqlite", "redis", "pubsub")
EXAMPLE = objects(MANIFESTS / "examples" / "batch" / "batch.yaml")
ALL = {name: kustomized(MANIFESTS / "batch" / name) for name in QUEUE_FOLDERS} | {"example": EXAMPLE}
SCALED = ("redis", "pubsub")


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pod templates."""
    return [item["spec"]["template"] for item in found if item["kind"] in ("Deployment", "StatefulSet")]


def containers(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for pod in pods(found) for each in pod["spec"]["containers"] if each["name"] == name]


def settings(found: list[dict[str, Any]]) -> Settings:
    (container,) = containers(found, "subscriber")
    command, *flags = container["args"]
    assert command == "run"
    return parse(flags)


def serving(found: list[dict[str, Any]]) -> argparse.Namespace:
    (container,) = containers(found, "api")
    command, *flags = container["args"]
    assert command == "serve"
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize("name", ALL)
def test_the_commands_take_the_flags_and_agree_on_queue_results_and_objective(name: str) -> None:
    run, api = settings(ALL[name]), serving(ALL[name])
    assert (run.queue, run.results, run.cancellations) == (api.queue, api.results, api.cancellations)
    assert run.queue.partition(":")[0] in QUEUES
    assert run.results.partition(":")[0] in RESULTS
    assert (run.cancellations or run.queue).partition(":")[0] in CANCELLATIONS
    assert run.objective == api.objective
    quickstart = objects(*QUICKSTART.glob("*.yaml"))
    objective = InferenceObjective.model_validate(one(quickstart, "InferenceObjective", run.objective))
    assert objective.spec is not None
    assert (objective.spec.priority or 0) < 0
    assert run.gateway == f"http://{proxy_name('vllm-qwen-epp')}:{PROXY_PORT}"
    assert run.picker_metrics == f"http://vllm-qwen-epp:{METRICS_PORT}/metrics"


@pytest.mark.parametrize("name", ALL)
def test_pods_are_restricted_and_have_no_token_of_the_cluster(name: str) -> None:
    expected = one(objects(*QUICKSTART.glob("*.yaml")), "Deployment", "vllm-qwen")["spec"]["template"]["spec"]
    for pod in pods(ALL[name]):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"] == {**expected["securityContext"], "fsGroup": 65532}
        for container in spec["containers"]:
            assert container["securityContext"] == expected["containers"][0]["securityContext"]
            assert container["image"].startswith("headroom-batch:")
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", QUEUE_FOLDERS)
def test_secrets_are_references_to_files(name: str) -> None:
    assert not [item for item in ALL[name] if item["kind"] == "Secret"]
    for pod in pods(ALL[name]):
        mounted = {
            mount["mountPath"]: mount["name"]
            for each in pod["spec"]["containers"]
            for mount in each["volumeMounts"]
        }
        secrets = {each["name"] for each in pod["spec"]["volumes"] if "secret" in each}
        text = " ".join(flag for each in pod["spec"]["containers"] for flag in each["args"])
        for path in ("/etc/headroom-batch/redis/password", "/etc/headroom-batch/postgres/password"):
            if path in text:
                assert mounted[str(Path(path).parent)] in secrets
        assert "--password" not in text
        for each in pod["spec"]["containers"]:
            assert not [one for one in each.get("env", []) if "value" in one]
    assert mounted_token(ALL[name])


def mounted_token(found: list[dict[str, Any]]) -> bool:
    (container,) = containers(found, "api")
    token = serving(found).token_file
    return str(token.parent) in {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("name", QUEUE_FOLDERS)
def test_the_service_and_the_policies_select_the_pods(name: str) -> None:
    found = ALL[name]
    service = one(found, "Service", "headroom-batch-api")["spec"]
    (api,) = [pod for pod in pods(found) if service["selector"].items() <= pod["metadata"]["labels"].items()]
    (port,) = [
        port["containerPort"]
        for each in api["spec"]["containers"]
        for port in each["ports"]
        if port["name"] == service["ports"][0]["targetPort"]
    ]
    assert port == int(serving(found).listen.rpartition(":")[2])
    policies = [item["spec"] for item in found if item["kind"] == "NetworkPolicy"]
    for policy in policies:
        wanted = policy["podSelector"]["matchLabels"].items()
        assert all(wanted <= pod["metadata"]["labels"].items() for pod in pods(found))
    first = one(found, "NetworkPolicy", "headroom-batch")["spec"]
    assert port in [each["port"] for rule in first["ingress"] for each in rule["ports"]]
    out = {each["port"] for policy in policies for rule in policy["egress"] for each in rule.get("ports", [])}
    assert {53, PROXY_PORT, METRICS_PORT} <= out
    assert {"sqlite": set(), "redis": {6379}, "pubsub": {443, 5432}}[name] <= out


@pytest.mark.parametrize("name", SCALED)
def test_autoscaling_is_bounded_and_of_the_subscriber(name: str) -> None:
    folder = MANIFESTS / "batch" / name
    (hpa,) = objects(folder / "autoscaling-hpa.yaml")
    keda, authentication = objects(folder / "autoscaling-keda.yaml")
    one(ALL[name], "Deployment", hpa["spec"]["scaleTargetRef"]["name"])
    assert keda["spec"]["scaleTargetRef"]["name"] == hpa["spec"]["scaleTargetRef"]["name"]
    assert hpa["spec"]["maxReplicas"] == keda["spec"]["maxReplicaCount"] <= 10
    (trigger,) = keda["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    if name == "redis":
        assert trigger["metadata"]["stream"] == "headroom:{batch}:jobs"
        assert trigger["metadata"]["consumerGroup"] == GROUP


def test_on_google_the_account_is_by_workload_identity() -> None:
    account = one(ALL["pubsub"], "ServiceAccount", "headroom-batch")
    assert "iam.gke.io/gcp-service-account" in account["metadata"]["annotations"]


def test_the_example_listens_for_port_forward_alone() -> None:
    api = serving(EXAMPLE)
    assert api.listen.startswith("127.0.0.1:")
    assert api.token_file is None
