"""Properties of what is made for a pool; `test_golden.py` has it field by field."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.settings import parse
from inference_api.default_picker_config import DEFAULT_PICKER_CONFIG
from inference_api.endpoint_picker import EndpointPickerSpec
from inference_api.priority_table import PriorityTable
from inference_operator.core.desired.config_maps import config_text
from inference_operator.core.desired.plan import desired
from inference_operator.core.desired.ports import picker_ports
from inference_operator.core.kinds import CONFIG_MAP, DEPLOYMENT, OBJECTIVES, SERVICE
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import judge
from observations import FULL_ACCESS, objective, observation, picker_body, pool_body, settled

FULL = picker_body(
    image="mine:2",
    config={"plugins": [{"type": "random-picker"}]},
    resources={"requests": {"cpu": 1}},
    proxy={"mode": "Deployment", "replicas": 2, "image": "envoy:2"},
)
CASES = {
    "plain": observation(),
    "full": observation(
        picker=FULL, objectives=(objective("batch", -5), objective("gold", 10), objective("none"))
    ),
}


def deployment_args(seen: Observation) -> list[str]:
    for intent in desired(seen, judge(seen)):
        if intent.kind is DEPLOYMENT:
            args: list[str] = intent.body["spec"]["template"]["spec"]["containers"][0]["args"]
            return args
    raise AssertionError("no Deployment")


def test_equal_observations_give_equal_objects_whatever_the_order_of_objectives() -> None:
    one, other = objective("a", 1), objective("b", 2)
    seen = observation(objectives=(one, other))
    swapped = replace(seen, objectives=(other, one))
    assert desired(seen, judge(seen)) == desired(swapped, judge(swapped))


def test_the_picker_gets_the_flags_of_its_tracing_and_access_log() -> None:
    spec = picker_body(accessLog=True, tracing={"endpoint": "http://collector:4318", "samplingPercent": 5})
    settings = parse(deployment_args(observation(picker=spec)), {"POD_IP": "127.0.0.1", "NAMESPACE": "ns"})
    assert (settings.access_log, settings.tracing_endpoint) == (True, "http://collector:4318")
    assert settings.tracing_sampling_percent == 5
    plain = parse(deployment_args(CASES["plain"]), {"POD_IP": "127.0.0.1", "NAMESPACE": "ns"})
    assert (plain.access_log, plain.tracing_endpoint) == (False, "")


@pytest.mark.parametrize("port", [9002, 9003, 9090, 443, 8081])
def test_the_pools_port_is_the_pickers_and_no_two_ports_meet(port: int) -> None:
    ref = {"group": "", "kind": "Service", "name": "llm-epp", "port": {"number": port}}
    seen = observation(pool_body(endpointPickerRef=ref))
    ports = picker_ports(seen)
    assert ports.ext_proc == port
    assert len({ports.ext_proc, ports.health, ports.metrics}) == 3
    assert f"--grpc-port={port}" in deployment_args(seen)
    service = next(i.body for i in desired(seen, judge(seen)) if i.kind is SERVICE)
    assert all(p["port"] == p["targetPort"] for p in service["spec"]["ports"])


def test_a_long_pool_name_is_in_no_label() -> None:
    seen = observation(pool_body("p" * 200))
    for intent in desired(seen, judge(seen)):
        labels = intent.body["metadata"]["labels"]
        assert all(len(value) <= 63 for value in labels.values())


def test_a_users_configuration_is_written_with_its_type() -> None:
    text = config_text(
        EndpointPickerSpec(config={"kind": "EndpointPickerConfig", "plugins": [{"type": "x"}]})
    )
    assert yaml.safe_load(text) == {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": "x"}],
    }


def test_the_picker_understands_what_it_is_told() -> None:
    settings = parse(deployment_args(CASES["plain"]), {"POD_IP": "127.0.0.1", "NAMESPACE": "ns"})
    assert (settings.pool_name, settings.pool_namespace) == ("llm", "ns")
    assert (settings.config_map, settings.priorities_map) == ("llm-epp-config", "llm-epp-priorities")
    assert (settings.grpc_port, settings.health_port, settings.metrics_port) == (9002, 9003, 9090)
    assert settings.secure_serving


def test_the_picker_understands_the_default_configuration() -> None:
    built = build(config_text(EndpointPickerSpec()), Registry.installed())
    assert not built.warnings


def flow_control(config: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    spec = EndpointPickerSpec.model_validate({"config": config, "flowControl": settings})
    text: dict[str, Any] = yaml.safe_load(config_text(spec))
    return text


def test_flow_control_adds_its_gate_to_the_default_and_to_a_users_configuration() -> None:
    assert flow_control(enabled=True)["featureGates"] == ["flowControl"]
    assert flow_control(enabled=True)["plugins"] == yaml.safe_load(DEFAULT_PICKER_CONFIG)["plugins"]
    own = {"featureGates": ["other"], "plugins": []}
    assert flow_control(own, enabled=True)["featureGates"] == ["other", "flowControl"]
    assert own == {"featureGates": ["other"], "plugins": []}
    assert flow_control({"featureGates": ["flowControl"]}, enabled=True)["featureGates"] == ["flowControl"]
    assert "featureGates" not in flow_control({"plugins": []})


def test_trust_in_tenants_headers_does_not_replace_what_the_configuration_says() -> None:
    assert flow_control(enabled=True, trustTenantHeaders=True)["flowControl"] == {"trustTenantHeaders": True}
    own = {"flowControl": {"trustTenantHeaders": False, "maxBytes": "1Gi"}}
    assert flow_control(own, enabled=True, trustTenantHeaders=True)["flowControl"] == own["flowControl"]


def test_what_is_no_list_or_section_is_left_for_the_picker_to_refuse() -> None:
    broken = {"featureGates": "flowControl", "flowControl": 7}
    kept = flow_control(broken, enabled=True, trustTenantHeaders=True)
    assert (kept["featureGates"], kept["flowControl"]) == ("flowControl", 7)


def test_the_table_stays_while_objectives_cannot_be_read() -> None:
    seen = settled(observation(objectives=(objective("gold", 10),)))
    blind = replace(FULL_ACCESS, blind=frozenset({OBJECTIVES[0]}))
    lost = replace(seen, objectives=(), access=blind)
    made = {i.name: i.body for i in desired(lost, judge(lost)) if i.kind is CONFIG_MAP}
    assert "gold" in made["llm-epp-priorities"]["data"]["table.json"]


def test_the_table_round_trips() -> None:
    seen = CASES["full"]
    maps = {i.name: i.body["data"] for i in desired(seen, judge(seen)) if i.kind is CONFIG_MAP}
    table = PriorityTable.model_validate_json(maps["llm-epp-priorities"]["table.json"])
    assert {name: entry.priority for name, entry in table.objectives.items()} == {
        "batch": -5,
        "gold": 10,
        "none": 0,
    }
