"""What of a pool shows in its proxy's bootstrap."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from inference_api import names
from inference_operator.core.desired.proxy_bootstrap import (
    ProxySettings,
    bootstrap,
    bootstrap_yaml,
    proxy_args,
)

SETTINGS = ProxySettings(
    pool_namespace="team-a",
    pool_name="vllm-qwen",
    picker_host="vllm-qwen-epp.team-a.svc",
    fail_open=True,
    upstream_http2=False,
)


def listener(config: dict[str, Any], name: str) -> Any:
    return next(each for each in config["static_resources"]["listeners"] if each["name"] == name)


def cluster(config: dict[str, Any], name: str) -> Any:
    return next(each for each in config["static_resources"]["clusters"] if each["name"] == name)


def manager(config: dict[str, Any], name: str) -> Any:
    return listener(config, name)["filter_chains"][0]["filters"][0]["typed_config"]


def http_filter(config: dict[str, Any], name: str) -> Any:
    filters = manager(config, "requests")["http_filters"]
    return next(each["typed_config"] for each in filters if each["name"] == f"envoy.filters.http.{name}")


@pytest.mark.parametrize("fail_open", [True, False])
def test_the_failure_mode_of_the_pool_is_that_of_the_filter(fail_open: bool) -> None:
    config = bootstrap(replace(SETTINGS, fail_open=fail_open))

    assert http_filter(config, "ext_proc")["failure_mode_allow"] is fail_open


@pytest.mark.parametrize("http2", [True, False])
def test_h2c_pools_are_spoken_to_in_http2(http2: bool) -> None:
    pool = cluster(bootstrap(replace(SETTINGS, upstream_http2=http2)), "pool")

    (options,) = pool["typed_extension_protocol_options"].values()
    assert ("http2_protocol_options" in options["explicit_http_config"]) is http2
    assert ("codec_client_type" in pool["health_checks"][0]["http_health_check"]) is http2


def test_the_picker_is_asked_over_tls_at_its_service() -> None:
    picker = cluster(bootstrap(replace(SETTINGS, picker_port=9902)), "picker")

    (group,) = picker["load_assignment"]["endpoints"]
    (endpoint,) = group["lb_endpoints"]
    address = {"address": "vllm-qwen-epp.team-a.svc", "port_value": 9902}
    assert endpoint["endpoint"]["address"]["socket_address"] == address
    assert picker["transport_socket"]["typed_config"]["common_tls_context"] == {"alpn_protocols": ["h2"]}


def test_endpoints_come_from_the_picker_under_the_name_that_it_serves() -> None:
    source = cluster(bootstrap(SETTINGS), "pool")["eds_cluster_config"]

    assert source["service_name"] == names.EDS_CLUSTER
    (service,) = source["eds_config"]["api_config_source"]["grpc_services"]
    assert service["envoy_grpc"]["cluster_name"] == "picker"


def test_steering_headers_of_clients_go_before_the_picker_is_asked() -> None:
    config = bootstrap(SETTINGS)

    order = [each["name"].rsplit(".", 1)[1] for each in manager(config, "requests")["http_filters"]]
    assert order == ["header_mutation", "ext_proc", "router"]
    removed = {
        each["remove"] for each in http_filter(config, "header_mutation")["mutations"]["request_mutations"]
    }
    assert {names.DESTINATION_KEY, names.DESTINATION_SUBSET_KEY} <= removed


def test_both_listeners_bind_the_pods_own_address_and_the_admin_interface_binds_none() -> None:
    config = bootstrap(SETTINGS)

    bound = {
        (socket["address"], socket["port_value"])
        for each in config["static_resources"]["listeners"]
        for socket in [each["address"]["socket_address"]]
    }
    assert bound == {("$(POD_IP)", names.PROXY_PORT), ("$(POD_IP)", names.PROXY_STATUS_PORT)}
    assert set(config["admin"]["address"]) == {"pipe"}


def test_the_kubelet_expands_the_pods_address_and_nothing_else() -> None:
    for argument in proxy_args(SETTINGS):
        assert set(re.findall(r"\$\(?\w*\)?", argument)) <= {"$(POD_IP)"}


def test_the_text_is_the_configuration_and_the_same_each_time() -> None:
    text = bootstrap_yaml(SETTINGS)

    assert yaml.safe_load(text) == bootstrap(SETTINGS)
    assert bootstrap_yaml(replace(SETTINGS)) == text
    assert not {type(token) for token in yaml.scan(text)} & {yaml.AliasToken, yaml.AnchorToken}
