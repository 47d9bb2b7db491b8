"""The manifests agree with the code: rights, names, images, order."""

import re
from itertools import chain
from typing import Any

import pytest
import yaml

from inference_api import names
from inference_api.endpoint_picker import EndpointPicker, ProxyMode
from inference_api.inference_objective import InferenceObjective
from inference_api.inference_pool import InferencePool
from inference_operator.core import kinds
from inference_operator.shell.flags import parse_settings
from manifest_files import BASE, MANIFESTS, QUICKSTART, ROOT, kustomized, objects, one

BASE_OBJECTS = kustomized(BASE)
QUICKSTART_OBJECTS = objects(*sorted(QUICKSTART.glob("*.yaml")))
RELEASE = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def granted(role: dict[str, Any]) -> dict[str, set[str]]:
    """Verbs by resource (`plural.group`), of rules without resource names."""
    verbs: dict[str, set[str]] = {}
    for rule in role["rules"]:
        if "resourceNames" not in rule:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    key = f"{resource}.{group}" if group else resource
                    verbs.setdefault(key, set()).update(rule["verbs"])
    return verbs


def test_the_operator_is_granted_exactly_the_verbs_that_its_code_names() -> None:
    role = one(BASE_OBJECTS, "ClusterRole", "headroom-operator")
    wanted: dict[str, set[str]] = {
        "selfsubjectaccessreviews.authorization.k8s.io": {"create"},
        "subjectaccessreviews.authorization.k8s.io": {"create"},
    }
    own = (kinds.POOL, kinds.PICKER, *kinds.OBJECTIVES, *kinds.REWRITES, *kinds.CHILD_KINDS)
    for kind in (*own, kinds.POD, kinds.EVENT, kinds.LEASE, kinds.CRD):
        wanted[kind.resource] = set(kind.verbs)
        if kind.status_verbs:
            wanted[f"{kind.plural}/status.{kind.group}"] = set(kind.status_verbs)

    assert granted(role) == wanted


def test_the_operator_is_granted_its_own_lease_and_no_other_in_its_namespace() -> None:
    role = one(BASE_OBJECTS, "Role", "headroom-operator")
    (named,) = [rule for rule in role["rules"] if "resourceNames" in rule]
    account = one(BASE_OBJECTS, "ServiceAccount", "headroom-operator")

    assert granted(role) == {kinds.LEASE.resource: {"create"}, "events": {"create"}}
    assert named["resourceNames"] == [account["metadata"]["name"]]
    assert {"create", *named["verbs"]} == set(kinds.LEASE_VERBS)


def test_the_operator_can_hand_out_the_pickers_role_and_no_other() -> None:
    role = one(BASE_OBJECTS, "ClusterRole", "headroom-operator")
    named = [rule for rule in role["rules"] if "resourceNames" in rule]

    assert named == [
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterroles"],
            "resourceNames": ["headroom-epp"],
            "verbs": ["bind"],
        }
    ]


def test_a_picker_reads_three_kinds_and_writes_none() -> None:
    read = {"get", "list", "watch"}

    assert granted(one(BASE_OBJECTS, "ClusterRole", "headroom-epp")) == {
        "pods": read,
        "configmaps": read,
        f"inferencepools.{names.POOL_GROUP}": read,
    }


def test_nothing_of_the_installation_looks_like_a_child_of_a_pool() -> None:
    labels = [found["metadata"].get("labels", {}) for found in BASE_OBJECTS]

    assert not any(names.MANAGED_BY_LABEL in each for each in labels)


def test_the_operator_understands_its_arguments() -> None:
    container = one(BASE_OBJECTS, "Deployment", "headroom-operator")["spec"]["template"]["spec"][
        "containers"
    ][0]
    values = {entry["name"]: entry.get("value", "127.0.0.1") for entry in container["env"]}
    arguments = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text) for text in container["args"]]

    settings = parse_settings(arguments, values)

    unaided = parse_settings([], values)
    assert settings == unaided
    (port,) = (each["containerPort"] for each in container["ports"])
    assert port == settings.health_port


def test_every_image_of_ours_has_the_version_of_this_release() -> None:
    assert RELEASE is not None
    text = "\n".join(path.read_text() for path in MANIFESTS.rglob("*.yaml"))

    tags = re.findall(r"(?:image|value): headroom-[\w-]+:(\S+)", text)
    assert len(tags) >= 3
    assert set(tags) == {RELEASE[1]}


DEPLOYMENTS = [found for found in chain(BASE_OBJECTS, QUICKSTART_OBJECTS) if found["kind"] == "Deployment"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda found: found["metadata"]["name"])
def test_a_pod_is_restricted_bounded_and_selected_by_its_deployment(deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]
    pod = spec["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert "memory" in container["resources"]["limits"]
        assert "readinessProbe" in container
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_quickstart_puts_the_picker_before_the_pool_of_the_same_name() -> None:
    order = [found["kind"] for found in QUICKSTART_OBJECTS]

    assert order.index("EndpointPicker") < order.index("InferencePool")
    assert one(QUICKSTART_OBJECTS, "EndpointPicker", "vllm-qwen")
    assert one(QUICKSTART_OBJECTS, "InferencePool", "vllm-qwen")


def test_the_quickstart_fits_together() -> None:
    picker = EndpointPicker.model_validate(one(QUICKSTART_OBJECTS, "EndpointPicker", "vllm-qwen"))
    pool = InferencePool.model_validate(one(QUICKSTART_OBJECTS, "InferencePool", "vllm-qwen"))
    servers = one(QUICKSTART_OBJECTS, "Deployment", "vllm-qwen")["spec"]
    template = servers["template"]
    objectives = [
        InferenceObjective.model_validate(o) for o in QUICKSTART_OBJECTS if o["kind"] == "InferenceObjective"
    ]

    assert picker.spec.proxy.mode is ProxyMode.DEPLOYMENT
    assert pool.spec.selector.match_labels == template["metadata"]["labels"]
    served = {port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    assert served == {port.number for port in pool.spec.target_ports}
    assert servers["replicas"] == 3
    specs = [objective.spec for objective in objectives if objective.spec is not None]
    assert {spec.pool_ref.name for spec in specs} == {"vllm-qwen"}
    assert sorted(spec.priority or 0 for spec in specs) == [-10, 10]


def test_the_quickstart_folder_can_be_applied_as_it_is() -> None:
    files = [path.name for path in QUICKSTART.iterdir() if path.suffix in {".yaml", ".yml", ".json"}]

    assert "kustomization.yaml" not in files  # `kubectl apply -f` would take it for an object


def test_the_overlay_of_the_manual_is_valid_yaml_and_names_what_exists() -> None:
    text = (MANIFESTS / "README.md").read_text()
    overlay = yaml.safe_load(text.split("```yaml\n", 1)[1].split("```", 1)[0])
    patch = yaml.safe_load(overlay["patches"][0]["patch"])

    base = one(BASE_OBJECTS, patch["kind"], patch["metadata"]["name"])
    assert base["metadata"]["namespace"] == patch["metadata"]["namespace"]
    (patched,) = patch["spec"]["template"]["spec"]["containers"]
    (container,) = base["spec"]["template"]["spec"]["containers"]
    assert patched["name"] == container["name"]
    assert {entry["name"] for entry in patched["env"]} <= {entry["name"] for entry in container["env"]}
