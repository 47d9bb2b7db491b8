"""What the reader of a pool file takes from it, and what it says of a faulty one."""

from pathlib import Path

import pytest

from endpoint_picker.config.registry import Registry
from pool_simulation.study.pool_file import PoolFileError, parse

REPOSITORY = Path(__file__).parents[3]
REGISTRY = Registry.installed()
POOL = """\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: p
spec:
  selector: {matchLabels: {app: p}}
  targetPorts: [{number: 8000}, {number: 8001}]
"""
CONFIG = """\
---
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
"""


def faults(text: str) -> list[tuple[int, str]]:
    with pytest.raises(PoolFileError) as refused:
        parse(text, REGISTRY)
    return refused.value.faults


def test_the_quickstart_is_a_pool_file() -> None:
    text = "---\n".join(
        path.read_text() for path in sorted((REPOSITORY / "manifests/examples/quickstart").glob("*.yaml"))
        if path.name != "kustomization.yaml"
    )  # fmt: skip
    pool = parse(text, REGISTRY)
    assert (pool.name, pool.replicas, pool.ports, pool.config) == ("vllm-qwen", 3, 1, "")
    assert pool.priorities == {"interactive": 10, "batch": -10}


def test_the_example_of_the_docs_is_a_pool_file() -> None:
    pool = parse((REPOSITORY / "docs/simulate/pool.yaml").read_text(), REGISTRY)
    assert (pool.name, pool.replicas, pool.engine) == ("vllm-llama", 4, "llama-8b-a100-40gb")
    assert "weight: 3" in pool.config
    assert pool.priorities == {"batch": -10}


def test_a_pool_alone_suffices_and_each_target_port_counts() -> None:
    pool = parse(POOL, REGISTRY)
    assert (pool.ports, pool.replicas, pool.engine, pool.config) == (2, None, None, "")


def test_a_configuration_may_be_an_object_of_its_own() -> None:
    assert "random-picker" in parse(POOL + CONFIG, REGISTRY).config


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        pytest.param("", 0, "holds 0 objects of the kind InferencePool, needs one", id="empty"),
        pytest.param(POOL + "---\n" + POOL, 9, "holds 2 objects of the kind InferencePool", id="two-pools"),
        pytest.param("a: [\n", 1, "not YAML at line 2", id="not-yaml"),
        pytest.param("- a\n", 1, "is no Kubernetes object", id="list"),
        pytest.param(POOL.replace("8000", "eight"), 7, "spec.targetPorts[0].number: ", id="port"),
        pytest.param(POOL.replace("  selector:", "  select:"), 5, "spec.selector: ", id="selector"),
        pytest.param(
            POOL + CONFIG.replace("- type: random-picker", "- type: randm-picker"),
            12, 'plugins[0].type: unknown plugin type "randm-picker"; did you mean', id="plugin",
        ),
        pytest.param(POOL + CONFIG + CONFIG, 18, "a second configuration of the picker", id="two-configs"),
        pytest.param(
            POOL.replace("name: p\n", 'name: p\n  annotations: {simulate.headroom.dev/replicas: "0"}\n'),
            5, "simulate.headroom.dev/replicas must be a number from 1 to 1000", id="replicas",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_line_and_path(text: str, line: int, says: str) -> None:
    (where, message), *_ = faults(text)
    assert says in message
    assert where == line


@pytest.mark.parametrize("template", ["null", "[a]", "{metadata: null}", "{metadata: {labels: [a]}}"])
def test_a_deployment_without_labels_is_not_the_pool_s(template: str) -> None:
    text = POOL + f"---\nkind: Deployment\nspec: {{replicas: 7, template: {template}}}\n"
    assert parse(text, Registry.installed()).replicas is None


def test_faults_within_an_endpoint_picker_have_the_lines_of_the_file() -> None:
    picker = CONFIG.replace("---\n", "").replace("random-picker", "no-picker").replace("\n", "\n    ")
    text = POOL + "---\nkind: EndpointPicker\nmetadata: {name: p}\nspec:\n  config:\n    " + picker
    (where, message), *_ = faults(text)
    assert message.startswith("EndpointPicker p: spec.config.plugins[0].type: unknown plugin type")
    assert text.splitlines()[where - 1].strip() == "- type: no-picker"
