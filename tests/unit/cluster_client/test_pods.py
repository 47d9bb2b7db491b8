"""What a pod is to a pool, whatever its manifest holds."""

from typing import Any

import pytest

from cluster_client.pods import has_ready_condition, pod_of, served_ports
from cluster_client.selectors import selector_query, selects

READY = [{"type": "Initialized", "status": "False"}, {"type": "Ready", "status": "True"}]


def pod(metadata: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", **(metadata or {})},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": READY, **status},
    }


@pytest.mark.parametrize(
    ("manifest", "ready", "serving"),
    [
        pytest.param(pod(), True, True, id="ready"),
        pytest.param(pod(conditions=[{"type": "Ready", "status": "False"}]), False, False, id="not ready"),
        pytest.param(pod(conditions=[{"type": "Ready", "status": "Unknown"}]), False, False, id="unknown"),
        pytest.param(pod(conditions=[]), False, False, id="no condition"),
        pytest.param(pod(conditions=None), False, False, id="conditions null"),
        pytest.param(pod(conditions=["Ready", 5]), False, False, id="conditions malformed"),
        pytest.param(pod({"deletionTimestamp": "2026-01-01T00:00:00Z"}), False, False, id="terminating"),
        pytest.param(pod(phase="Succeeded"), False, False, id="succeeded"),
        pytest.param(pod(phase="Failed"), False, False, id="failed"),
        pytest.param(pod(podIP=""), True, False, id="no address yet"),
        pytest.param(pod(podIP="host.example"), True, False, id="a name is no address"),
        pytest.param(pod(podIP="fe80::1%eth0"), True, False, id="an address with a zone"),
        pytest.param({"status": []}, False, False, id="status malformed"),
        pytest.param({}, False, False, id="empty"),
    ],
)
def test_which_pods_are_ready_and_serve(manifest: dict[str, Any], ready: bool, serving: bool) -> None:
    assert pod_of(manifest).ready is ready
    assert pod_of(manifest).is_serving is serving


def test_the_condition_alone_outlives_the_start_of_a_deletion() -> None:
    assert has_ready_condition(pod({"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert not has_ready_condition(pod(conditions=[]))


def test_an_address_is_spelled_canonically() -> None:
    assert pod_of(pod(podIP="FD00:0:0::1")).address == "fd00::1"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, None, id="absent"),
        pytest.param(None, None, id="null"),
        pytest.param({"llm-d.ai/active-ports": ""}, "", id="empty is not absent"),
        pytest.param({"inference.networking.k8s.io/active-ports": "1"}, "1", id="older name"),
        pytest.param(
            {"inference.networking.k8s.io/active-ports": "1", "llm-d.ai/active-ports": "2"},
            "2",
            id="newer name first",
        ),
    ],
)
def test_the_annotation_of_active_ports(annotations: dict[str, str] | None, expected: str | None) -> None:
    assert pod_of(pod({"annotations": annotations})).active_ports == expected


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        pytest.param(None, {8000, 8001, 8002}, id="absent: all"),
        pytest.param("", set(), id="empty: none"),
        pytest.param("8000, 8002", {8000, 8002}, id="spaces"),
        pytest.param("8001,8001", {8001}, id="duplicates"),
        pytest.param("8001,junk,-8000,9999,8e3,+8000,8_000", {8001}, id="junk and foreign ports"),
        pytest.param("²,٨٠٠٠", set(), id="no ASCII digits"),
        pytest.param("8" * 5000, set(), id="a number too long to read"),
    ],
)
def test_served_ports(annotation: str | None, expected: set[int]) -> None:
    assert served_ports(annotation, (8000, 8001, 8002)) == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (None, "u/0"),
        ([{"restartCount": 1}, {"restartCount": 2}], "u/3"),
        ([{}, "x", {"restartCount": "7"}], "u/0"),
    ],
)
def test_restarts_make_another_server(statuses: Any, expected: str) -> None:
    assert pod_of(pod(containerStatuses=statuses)).incarnation == expected


def test_a_selector_is_one_text_in_any_order() -> None:
    assert selector_query({"b": "2", "a": "1"}) == selector_query({"a": "1", "b": "2"}) == "a=1,b=2"
    assert selector_query({}) == ""


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"a": "1", "b": ""}, True),
        ({"a": "1", "b": "", "c": "3"}, True),
        ({"a": "1"}, False),
        ({"a": "2", "b": ""}, False),
        ({}, False),
    ],
)
def test_all_labels_of_a_selector_have_to_match(labels: dict[str, str], expected: bool) -> None:
    assert selects({"a": "1", "b": ""}, labels) is expected


def test_an_empty_selector_takes_all() -> None:
    assert selects({}, {"a": "1"})
