"""What is taken out of a live object so that the API server takes the intent."""

from typing import Any

import pytest

from inference_operator.core.drift import as_applied
from inference_operator.core.obstacles import must_be_replaced, obstacles

ME = "headroom-operator"


def deployment(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}


def with_volume(**volume: Any) -> dict[str, Any]:
    return deployment(template={"spec": {"volumes": [{"name": "v", **volume}]}})


def pod(**container: Any) -> dict[str, Any]:
    return deployment(template={"spec": {"containers": [{"name": "epp", **container}]}})


def port(number: int, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP", **more}


CONTAINER = "/spec/template/spec/containers/0"


@pytest.mark.parametrize(
    ("want", "have", "steps"),
    [
        pytest.param(pod(image="a"), pod(image="b"), {}, id="a changed value is simply applied"),
        pytest.param(
            deployment(strategy={"type": "Recreate"}),
            deployment(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}),
            {"/spec/strategy": {"type": "Recreate"}},
            id="rollingUpdate goes with Recreate",
        ),
        pytest.param(
            deployment(strategy={"type": "RollingUpdate"}),
            deployment(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}),
            {},
            id="rollingUpdate stays with RollingUpdate",
        ),
        pytest.param(
            pod(livenessProbe={"grpc": {"port": 1}, "periodSeconds": 5}),
            pod(livenessProbe={"exec": {"command": ["x"]}, "periodSeconds": 9, "timeoutSeconds": 2}),
            {
                f"{CONTAINER}/livenessProbe": {
                    "grpc": {"port": 1},
                    "periodSeconds": 5,
                    "timeoutSeconds": 2,
                }
            },
            id="one handler a probe",
        ),
        pytest.param(
            pod(env=[{"name": "A", "value": "1"}]),
            pod(env=[{"name": "B", "value": "2"}, {"name": "A", "valueFrom": {"fieldRef": {}}}]),
            {f"{CONTAINER}/env/1": {"name": "A", "value": "1"}},
            id="a value or a source",
        ),
        pytest.param(
            with_volume(configMap={"name": "c"}),
            with_volume(emptyDir={}),
            {"/spec/template/spec/volumes/0": {"name": "v", "configMap": {"name": "c"}}},
            id="one source a volume",
        ),
        pytest.param(
            pod(ports=[port(9005, "grpc"), port(9090, "metrics")]),
            pod(ports=[port(9002, "grpc"), port(9090, "metrics", hostPort=1), port(7, "mesh")]),
            {
                f"{CONTAINER}/ports": [
                    port(9090, "metrics", hostPort=1),
                    port(7, "mesh"),
                    port(9005, "grpc"),
                ]
            },
            id="one port a name",
        ),
        pytest.param(
            pod(ports=[port(9002, "metrics"), port(9090, "grpc")]),
            pod(ports=[port(9002, "grpc"), port(9090, "metrics")]),
            {f"{CONTAINER}/ports": [port(9002, "metrics"), port(9090, "grpc")]},
            id="names swapped",
        ),
    ],
)
def test_steps(want: dict[str, Any], have: dict[str, Any], steps: dict[str, Any]) -> None:
    assert {step["path"]: step["value"] for step in obstacles(want, have)} == steps


def entry(operation: str, fields: dict[str, Any], manager: str = ME, **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": fields, **more}


def test_what_a_post_owns_becomes_owned_by_apply() -> None:
    theirs = entry("Update", {"f:x": {}}, "kubectl")
    status = entry("Update", {"f:status": {}}, subresource="status")
    made = entry("Update", {"f:spec": {"f:a": {}, "f:b": {"f:c": {}}}})
    applied = entry("Apply", {"f:spec": {"f:b": {"f:d": {}}}})
    live = {"metadata": {"managedFields": [theirs, made, status, applied]}}
    both = entry("Apply", {"f:spec": {"f:a": {}, "f:b": {"f:c": {}, "f:d": {}}}})
    assert as_applied(live, ME) == [theirs, status, both]


@pytest.mark.parametrize("entries", [[], [entry("Apply", {})], [entry("Update", {}, "kubectl")]])
def test_without_an_update_entry_of_ours_nothing_is_changed(entries: list[dict[str, Any]]) -> None:
    assert as_applied({"metadata": {"managedFields": entries}}, ME) is None


@pytest.mark.parametrize(
    ("kind", "part", "replaced"),
    [("RoleBinding", "roleRef", True), ("RoleBinding", "subjects", False), ("Deployment", "spec", False)],
)
def test_what_can_never_be_changed_is_made_anew(kind: str, part: str, replaced: bool) -> None:
    want = {"kind": kind, part: {"name": "new"}}
    assert must_be_replaced(want, {**want, part: {"name": "old"}}) is replaced
    assert not must_be_replaced(want, want)
