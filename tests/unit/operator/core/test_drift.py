from typing import Any

import pytest

from inference_operator.core.drift import drift
from inference_operator.core.quantities import parse_quantity, same_quantity

ME = "headroom-operator"


def owned(fields: dict[str, Any], **more: str) -> dict[str, Any]:
    entry = {"manager": ME, "operation": "Apply", "fieldsV1": fields, **more}
    return {"metadata": {"name": "x", "managedFields": [entry]}}


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": list(containers)}}


def with_ports(version: str, kind: str, *ports: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "spec": {"ports": list(ports)}}


@pytest.mark.parametrize(
    ("intent", "live", "path"),
    [
        pytest.param({"data": {"a": "1"}}, {"data": {"a": "1", "b": "2"}}, None, id="others may add"),
        pytest.param({"data": {"a": "1"}}, {"data": {"a": "2"}}, "data.a", id="changed"),
        pytest.param({"data": {"a": "1"}}, {"data": {}}, "data.a", id="removed"),
        pytest.param({"data": {"a": "1"}}, {}, "data", id="part gone"),
        pytest.param(
            {"spec": {"args": ["a"]}}, {"spec": {"args": ["a", "b"]}}, "spec.args", id="atomic list"
        ),
        pytest.param(
            {"spec": {"args": ["a", "b"]}}, {"spec": {"args": ["a", "c"]}}, "spec.args[1]", id="item"
        ),
        pytest.param({"spec": {}}, {}, None, id="empty map"),
        pytest.param({"spec": {"emptyDir": {}}}, {"spec": {"emptyDir": {"x": 1}}}, None, id="empty dir"),
        pytest.param(
            pod({"name": "epp", "image": "a"}),
            pod({"name": "mesh"}, {"name": "epp", "image": "a", "tty": False}),
            None,
            id="injected container",
        ),
        pytest.param(
            pod({"name": "epp", "image": "a"}),
            pod({"name": "mesh"}, {"name": "epp", "image": "b"}),
            "spec.containers[epp].image",
            id="container changed",
        ),
        pytest.param(pod({"name": "epp"}), pod(), "spec.containers[epp]", id="container gone"),
        pytest.param(
            pod({"name": "epp", "env": [{"name": "A", "value": "1"}]}),
            pod({"name": "epp", "env": [{"name": "B"}, {"name": "A", "value": "1"}]}),
            None,
            id="a list with keys inside a list with keys",
        ),
        pytest.param(
            with_ports("v1", "Service", {"port": 1, "protocol": "TCP"}),
            with_ports("v1", "Service", {"port": 1, "protocol": "UDP"}, {"port": 1, "nodePort": 3}),
            "spec.ports[1].protocol",
            id="a key's default is found, not filled in",
        ),
        pytest.param(
            with_ports("v1", "Service", {"port": 1}),
            with_ports("v1", "Service", {"port": 2}, {"port": 1, "protocol": "TCP"}),
            None,
            id="ports of a Service have keys",
        ),
        pytest.param(
            with_ports("networking.k8s.io/v1", "NetworkPolicy", {"port": 1}),
            with_ports("networking.k8s.io/v1", "NetworkPolicy", {"port": 2}, {"port": 1}),
            "spec.ports",
            id="ports of a NetworkPolicy are one value",
        ),
        pytest.param(
            with_ports("example.dev/v1", "Service", {"port": 1}),
            with_ports("example.dev/v1", "Service", {"port": 2}, {"port": 1}),
            "spec.ports",
            id="a kind of the same name in another group has no part in the table",
        ),
        pytest.param(
            {"kind": "Any", "metadata": {"ownerReferences": [{"uid": "a"}]}},
            {"kind": "Any", "metadata": {"ownerReferences": [{"uid": "b"}, {"uid": "a"}]}},
            None,
            id="owners have keys in every kind",
        ),
        pytest.param(
            {"limits": {"memory": "1Gi", "cpu": "500m"}},
            {"limits": {"memory": "1024Mi", "cpu": "0.5"}},
            None,
            id="quantities are canonical",
        ),
        pytest.param({"limits": {"cpu": 1}}, {"limits": {"cpu": "2"}}, "limits.cpu", id="another quantity"),
        pytest.param({"limits": {"cpu": 1}}, {"limits": {}}, "limits.cpu", id="quantity gone"),
        pytest.param(
            {"apiVersion": "v1", "kind": "A"}, {"apiVersion": "v2", "kind": "A"}, None, id="type is no drift"
        ),
    ],
)
def test_the_intent_must_be_a_subset_of_the_live_object(
    intent: dict[str, Any], live: dict[str, Any], path: str | None
) -> None:
    assert drift(intent, live, ME) == path


@pytest.mark.parametrize(
    ("intent", "fields", "path"),
    [
        pytest.param({"data": {"a": "1"}}, {"f:data": {"f:a": {}}}, None, id="same"),
        pytest.param({"data": {"a": "1"}}, {"f:data": {"f:a": {}, "f:b": {}}}, "data.b", id="key left"),
        pytest.param({}, {"f:spec": {"f:replicas": {}}}, "spec", id="part left"),
        pytest.param(
            {"spec": {"selector": {"a": "1"}}}, {"f:spec": {"f:selector": {}}}, None, id="atomic map"
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]},
            {"f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}}},
            None,
            id="item kept",
        ),
        pytest.param(
            {"env": [{"name": "A"}]},
            {"f:env": {'k:{"name":"B"}': {".": {}, "f:name": {}}}},
            'env[{"name":"B"}]',
            id="item left",
        ),
        pytest.param(
            {"ports": [{"port": 1}]},
            {"f:ports": {'k:{"port":1,"protocol":"TCP"}': {".": {}, "f:port": {}}}},
            None,
            id="defaulted key",
        ),
        pytest.param(
            {"finalizers": []}, {"f:finalizers": {'v:"x"': {}}}, 'finalizers["x"]', id="set value left"
        ),
    ],
)
def test_what_we_own_must_be_in_the_intent(
    intent: dict[str, Any], fields: dict[str, Any], path: str | None
) -> None:
    live = {**intent, **owned(fields)}
    live["metadata"] = {**owned(fields)["metadata"]}
    assert drift(intent, live, ME) == path


def test_fields_of_others_and_of_other_subresources_are_not_ours() -> None:
    live = owned({"f:data": {"f:a": {}}}, subresource="status")
    assert drift({}, live, ME) is None
    assert drift({}, live, ME, "status") == "data"
    assert drift({}, owned({"f:data": {}}, manager="helm"), ME) is None
    assert drift({}, owned({"f:data": {}}, operation="Update"), ME) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1Gi", "1073741824", True),
        ("1500m", "1.5", True),
        ("1k", "1e3", True),
        ("1M", "1Mi", False),
        (1, "1", True),
        ("0.1", "100m", True),
        ("junk", "junk", True),
        ("junk", "1", False),
    ],
)
def test_quantities(one: str | int, other: str, same: bool) -> None:
    assert same_quantity(one, other) is same


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Zi", "--1"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)
