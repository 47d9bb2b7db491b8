"""What the names of Services resolve to on a kubelet node."""

from local_cluster.kubelet.dns import addresses_of
from local_cluster.node.objects import Json, Key

SERVICES: dict[Key, Json] = {
    ("ns", "plain"): {"spec": {"clusterIP": "10.200.128.9"}},
    ("ns", "headless"): {"spec": {"clusterIP": "None"}},
    ("ns", "eager"): {"spec": {"clusterIP": "None", "publishNotReadyAddresses": True}},
    ("ns", "external"): {"spec": {"type": "ExternalName"}},
}


def endpoint_slice(service: str, namespace: str = "ns") -> Json:
    return {
        "metadata": {"namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [
            {"addresses": ["10.200.1.2"], "conditions": {"ready": True}},
            {"addresses": ["10.200.1.3"], "conditions": {"ready": False}},
        ],
    }


SLICES = [endpoint_slice("headless"), endpoint_slice("eager"), endpoint_slice("headless", "elsewhere")]


def test_a_service_has_its_cluster_address() -> None:
    assert addresses_of(("ns", "plain"), SERVICES, SLICES) == ["10.200.128.9"]


def test_a_headless_service_has_its_ready_endpoints() -> None:
    assert addresses_of(("ns", "headless"), SERVICES, SLICES) == ["10.200.1.2"]


def test_a_headless_service_may_publish_all() -> None:
    assert addresses_of(("ns", "eager"), SERVICES, SLICES) == ["10.200.1.2", "10.200.1.3"]


def test_other_names_have_none() -> None:
    assert addresses_of(("ns", "external"), SERVICES, SLICES) == []
    assert addresses_of(("ns", "absent"), SERVICES, SLICES) is None
