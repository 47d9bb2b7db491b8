"""What the node refuses, each by the field's name; and how it reads images."""

from typing import Any

import pytest

from local_cluster.images import DEFAULT_IMAGES, repository
from local_cluster.node.support import refusals

CONTAINER: dict[str, Any] = {"name": "c", "image": "i"}


def pod(spec: dict[str, Any] | None = None, container: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"spec": {"containers": [{**CONTAINER, **(container or {})}], **(spec or {})}}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (pod({"initContainers": [CONTAINER]}), "spec.initContainers"),
        (pod({"hostNetwork": True}), "spec.hostNetwork"),
        (pod({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), 'spec.volumes["v"].hostPath'),
        (pod({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}), 'spec.volumes["v"].secret'),
        (
            pod({"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]}),
            'spec.volumes["v"].projected.secret',
        ),
        (
            pod(container={"livenessProbe": {"exec": {"command": ["x"]}}}),
            'spec.containers["c"].livenessProbe',
        ),
        (
            pod(container={"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "x"}]}),
            'spec.containers["c"].volumeMounts.subPath',
        ),
        (
            pod(container={"env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            'spec.containers["c"].env["S"].secretKeyRef',
        ),
        (
            pod(container={"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}),
            'spec.containers["c"].lifecycle.preStop.exec',
        ),
    ],
)
def test_a_refusal_names_the_field(given: dict[str, Any], field: str) -> None:
    (sentence,) = refusals(given)
    assert sentence.startswith(field)


def test_supported_fields_are_not_refused() -> None:
    spec: dict[str, Any] = {
        "volumes": [
            {"name": kind, kind: {}} for kind in ("configMap", "emptyDir", "projected", "downwardAPI")
        ]
    }
    container = {
        "livenessProbe": {"grpc": {"port": 1}},
        "readinessProbe": {"httpGet": {"port": 1}},
        "startupProbe": {"tcpSocket": {"port": 1}},
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
        "securityContext": {"runAsNonRoot": True},
    }
    assert refusals(pod(spec, container)) == []


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("headroom-epp", "headroom-epp"),
        ("headroom-epp:0.1.0", "headroom-epp"),
        ("envoyproxy/envoy:v1.40.0", "envoyproxy/envoy"),
        ("docker.io/envoyproxy/envoy:v1", "envoyproxy/envoy"),
        ("docker.io/library/python@sha256:abc", "python"),
        ("registry.example:5000/team/epp:1", "registry.example:5000/team/epp"),
        ("registry.example:5000/team/epp", "registry.example:5000/team/epp"),
    ],
)
def test_an_image_is_known_by_its_repository(image: str, expected: str) -> None:
    assert repository(image) == expected


def test_every_headroom_image_and_the_proxys_has_a_program() -> None:
    assert {"headroom-operator", "headroom-epp", "headroom-model-server-sim", "envoyproxy/envoy"} <= set(
        DEFAULT_IMAGES
    )
