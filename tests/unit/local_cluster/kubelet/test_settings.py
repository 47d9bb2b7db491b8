"""What the node's programs are configured with."""

import ipaddress
import json
import tomllib
from pathlib import Path

import yaml

from local_cluster.kubelet import settings
from local_cluster.kubelet.archives import ENVOY_IMAGE
from local_cluster.kubelet.network import Network

ROOT = Path(__file__).resolve().parents[4]


def test_the_addresses_of_a_node_lie_in_its_network_and_do_not_meet() -> None:
    network = Network(3)
    whole = ipaddress.IPv4Network(network.whole)
    pods, services = ipaddress.IPv4Network(network.pods), ipaddress.IPv4Network(network.services)
    assert pods.subnet_of(whole)
    assert services.subnet_of(whole)
    assert not pods.overlaps(services)
    for address in map(ipaddress.IPv4Address, (network.host, network.node)):
        assert address in whole
        assert address not in pods
        assert address not in services
    assert not whole.overlaps(ipaddress.IPv4Network(Network(4).whole))
    assert network.addresses.first_service == str(services[1])


def test_containerd_takes_the_pause_image_and_runc() -> None:
    read = tomllib.loads(settings.containerd_config())
    plugins = read["plugins"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == settings.PAUSE_IMAGE
    runc = plugins["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]["runc"]
    assert runc["options"]["BinaryName"] == "/usr/sbin/runc"
    assert read["state"] == str(settings.TASKS)


def test_pods_get_addresses_of_the_network_and_the_nodes_name_server() -> None:
    network = Network(7)
    (plugin,) = json.loads(settings.cni_config(network))["plugins"]
    assert plugin["ipam"]["ranges"] == [[{"subnet": network.pods}]]
    kubelet = yaml.safe_load(settings.kubelet_config(network, "/headroom-7-1"))
    assert kubelet["clusterDNS"] == [network.node]
    assert kubelet["cgroupRoot"] == "/headroom-7-1"
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}


def test_the_envoy_that_is_packed_is_the_one_that_the_operator_runs() -> None:
    manifest = (ROOT / "manifests/base/operator.yaml").read_text()
    assert f"value: {ENVOY_IMAGE.removeprefix('docker.io/')}\n" in manifest
