"""The example of a disaggregated pool: its parts fit together, and a simulation takes the file as it is."""

from endpoint_picker.config.registry import Registry
from inference_api.inference_pool import InferencePool
from inference_api.names import ROLE_LABEL
from manifest_files import MANIFESTS, QUICKSTART, objects, one
from model_server_sim.main import ROLE
from pool_simulation.study.pool_file import parse

FILE = MANIFESTS / "examples" / "disaggregated" / "disaggregated.yaml"
OBJECTS = objects(FILE)
ROLES = ("prefill", "decode")


def test_the_pool_selects_the_servers_of_both_roles_and_each_knows_its_own() -> None:
    pool = InferencePool.model_validate(one(OBJECTS, "InferencePool", "vllm-pd"))
    for role in ROLES:
        servers = one(OBJECTS, "Deployment", f"vllm-pd-{role}")["spec"]
        labels = servers["template"]["metadata"]["labels"]
        assert labels == servers["selector"]["matchLabels"]
        assert labels[ROLE_LABEL] == role
        assert pool.spec.selector.match_labels.items() <= labels.items()
        (container,) = servers["template"]["spec"]["containers"]
        assert [port["containerPort"] for port in container["ports"]] == [
            port.number for port in pool.spec.target_ports
        ]
        (named,) = [each for each in container["env"] if each["name"] == ROLE]
        assert named["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{ROLE_LABEL}']"


def test_its_pods_are_as_restricted_as_the_quickstarts() -> None:
    quickstart = objects(*QUICKSTART.glob("*.yaml"))
    expected = one(quickstart, "Deployment", "vllm-qwen")["spec"]["template"]["spec"]
    for role in ROLES:
        pod = one(OBJECTS, "Deployment", f"vllm-pd-{role}")["spec"]["template"]["spec"]
        assert pod["securityContext"] == expected["securityContext"]
        assert pod["containers"][0]["securityContext"] == expected["containers"][0]["securityContext"]
        assert pod["containers"][0]["image"] == expected["containers"][0]["image"]


def test_the_file_can_be_simulated() -> None:
    pool = parse(FILE.read_text(), Registry.installed())
    assert pool.replicas == 4
    assert [dict(each.labels)[ROLE_LABEL] for each in pool.groups] == list(ROLES)
    assert "disagg-profile-handler" in pool.config
