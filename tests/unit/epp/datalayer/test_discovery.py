"""From pools and pods to endpoints."""

from typing import Any

import pytest

from cluster_client.pods import pod_of
from endpoint_picker.datalayer.discovery import endpoints_of, pool_of


def pool(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}], **spec},
    }


def pod(
    name: str = "a", *, ready: str = "True", ip: str | None = "10.0.0.1", **metadata: Any
) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
    if ip is not None:
        status["podIP"] = ip
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "labels": {"app": "vllm"},
            **metadata,
        },
        "status": status,
    }


def found(pool_manifest: dict[str, Any], *pods: dict[str, Any]) -> list[tuple[str, str, bool]]:
    endpoints = endpoints_of(pool_of(pool_manifest), [pod_of(each) for each in pods])
    return [(each.name, each.hostport, each.ready) for each in endpoints]


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        pytest.param(pod(), [("a-rank-0", "10.0.0.1:8000", True)], id="ready"),
        pytest.param(pod(ready="False"), [("a-rank-0", "10.0.0.1:8000", False)], id="not ready"),
        pytest.param(pod(ready="Unknown"), [("a-rank-0", "10.0.0.1:8000", False)], id="readiness unknown"),
        pytest.param(
            pod(deletionTimestamp="2026-01-01T00:00:00Z"),
            [("a-rank-0", "10.0.0.1:8000", False)],
            id="terminating",
        ),
        pytest.param(pod(ip=""), [], id="empty address"),
        pytest.param(pod(ip=None), [], id="no address"),
        pytest.param(pod(ip="not-an-ip"), [], id="no IP literal"),
        pytest.param(pod(labels={"app": "other"}), [], id="not selected"),
        pytest.param(pod(labels=None), [], id="no labels"),
        pytest.param(pod(ip="fd00::1"), [("a-rank-0", "[fd00::1]:8000", True)], id="IPv6"),
        pytest.param({"metadata": {"name": "a"}}, [], id="no status"),
        pytest.param(
            {**pod(), "status": {"phase": "Succeeded", "podIP": "10.0.0.1"}}, [], id="finished, address left"
        ),
    ],
)
def test_which_pods_are_endpoints(manifest: dict[str, Any], expected: list[tuple[str, str, bool]]) -> None:
    assert found(pool(), manifest) == expected


PORTS = [{"number": 8000}, {"number": 8001}, {"number": 8002}]


@pytest.mark.parametrize(
    ("annotation", "ranks"),
    [
        pytest.param(None, [0, 1, 2], id="absent: all"),
        pytest.param("", [], id="empty: none"),
        pytest.param("8000, 8002", [0, 2], id="two with spaces"),
        pytest.param("8001,8001", [1], id="duplicates collapse"),
        pytest.param("8001,junk,-8000,9999,8e3", [1], id="junk and foreign ignored"),
        pytest.param("²", [], id="no ASCII digit"),
    ],
)
@pytest.mark.parametrize("key", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"])
def test_active_ports_narrow_a_pod(annotation: str | None, ranks: list[int], key: str) -> None:
    annotations = {} if annotation is None else {key: annotation}
    names = [name for name, _, _ in found(pool(targetPorts=PORTS), pod(annotations=annotations))]
    assert names == [f"a-rank-{rank}" for rank in ranks]


def test_all_labels_of_the_selector_must_match() -> None:
    two = pool(selector={"matchLabels": {"app": "vllm", "tier": "gold"}})
    assert found(two, pod()) == []
    assert len(found(two, pod(labels={"app": "vllm", "tier": "gold", "more": "x"}))) == 1


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(
            {**pool(), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, id="being deleted"
        ),
        pytest.param({**pool(), "spec": {}}, id="empty spec"),
        pytest.param(pool(selector={"matchLabels": {}}), id="selects everything"),
    ],
)
def test_a_pool_that_selects_nothing_has_no_endpoints(manifest: dict[str, Any]) -> None:
    assert pool_of(manifest) is None
    assert found(manifest, pod()) == []


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        pytest.param({"Ready": "True", "lb/attached": "True"}, True, id="gate met"),
        pytest.param(
            {"Ready": "False", "lb/attached": "False", "ContainersReady": "True"}, False, id="not yet"
        ),
        pytest.param({"Ready": "True", "lb/attached": "False"}, False, id="closed, and Ready not set yet"),
        pytest.param({"Ready": "True"}, False, id="no condition"),
        pytest.param({"Ready": "False", "lb/attached": "True"}, False, id="gate met, container not ready"),
    ],
)
def test_a_readiness_gate_keeps_requests_away(conditions: dict[str, str], ready: bool) -> None:
    manifest = pod()
    manifest["spec"] = {"readinessGates": [{"conditionType": "lb/attached"}]}
    manifest["status"]["conditions"] = [{"type": kind, "status": each} for kind, each in conditions.items()]
    assert found(pool(), manifest) == [("a-rank-0", "10.0.0.1:8000", ready)]


@pytest.mark.parametrize(
    ("host", "expected"), [("10.1.0.9", "10.1.0.9"), ("FD00::9", "fd00::9"), ("node-9", ""), (None, "")]
)
def test_the_address_of_the_node_is_kept(host: str | None, expected: str) -> None:
    manifest = pod()
    manifest["status"]["hostIP"] = host
    (endpoint,) = endpoints_of(pool_of(pool()), [pod_of(manifest)])
    assert endpoint.node_address == expected


def test_a_restarted_container_is_another_server() -> None:
    before, after = pod(), pod()
    before["status"]["containerStatuses"] = [{"restartCount": 0}, {"restartCount": 1}]
    after["status"]["containerStatuses"] = [{"restartCount": 1}, {"restartCount": 1}]
    one, other = (endpoints_of(pool_of(pool()), [pod_of(each)])[0] for each in (before, after))
    assert not one.is_same_server(other)


def test_the_label_selector_is_stable() -> None:
    parsed = pool_of(pool(selector={"matchLabels": {"b": "2", "a": "1"}}))
    assert parsed is not None
    assert parsed.label_selector == "a=1,b=2"


@pytest.mark.parametrize(
    ("spec", "expected"), [({"nodeName": "n1"}, "n1"), ({}, ""), ({"nodeName": 7}, ""), (None, "")]
)
def test_an_endpoint_knows_the_node_of_its_pod(spec: Any, expected: str) -> None:
    manifest = {
        "metadata": {},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]},
    }
    (endpoint,) = endpoints_of(pool_of(manifest), [pod_of({**pod(), "spec": spec})])
    assert endpoint.node == expected
