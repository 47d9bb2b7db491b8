"""What `kubectl get` shows, as the API server prepares it."""

from typing import Any

from api_server import MERGE_PATCH, ApiServer

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
PICKERS = "/apis/headroom.dev/v1alpha1/namespaces/default/endpointpickers"
OBJECTIVES = "/apis/llm-d.ai/v1alpha2/namespaces/default/inferenceobjectives"


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    time = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time}


def test_a_pool_shows_its_picker_annotation_and_the_first_parent(api: ApiServer) -> None:
    pool = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "columns", "annotations": {"headroom.dev/picker": "Ready"}},
        "spec": {
            "targetPorts": [{"number": 8000}],
            "selector": {"matchLabels": {"app": "x"}},
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }
    assert api.create(POOLS, pool).code == 201
    parents = [{"parentRef": {"name": "first"}}, {"parentRef": {"name": "second"}}]
    api.request("PATCH", f"{POOLS}/columns/status", {"status": {"parents": parents}}, MERGE_PATCH)

    row = api.row(f"{POOLS}/columns")

    assert row.pop("Age")
    assert row == {
        "Name": "columns",
        "Picker": "Ready",
        "Gateway": "first",
        "Picker Ref": "epp",
        "Failure Mode": "FailClose",
    }


def test_a_picker_shows_whether_it_is_ready_and_why_not(api: ApiServer) -> None:
    picker = {
        "apiVersion": "headroom.dev/v1alpha1",
        "kind": "EndpointPicker",
        "metadata": {"name": "columns"},
    }
    assert api.create(PICKERS, picker).code == 201
    status = {
        "conditions": [
            condition("Accepted", "True", "Accepted"),
            condition("Ready", "False", "NoEndpoints", "no pod matches"),
        ],
        "readyReplicas": 1,
        "endpoints": {"ready": 0, "total": 3},
        "proxyAddress": "epp-proxy.default.svc:8081",
    }
    answer = api.request("PATCH", f"{PICKERS}/columns/status", {"status": status}, MERGE_PATCH)
    assert answer.code == 200, answer.message

    row = api.row(f"{PICKERS}/columns")

    assert row.pop("Age")
    assert row == {
        "Name": "columns",
        "Ready": "False",
        "Reason": "NoEndpoints",
        "Pickers": 1,
        "Endpoints": 0,
        "Of": 3,
        "Paused": None,
        "Proxy": "epp-proxy.default.svc:8081",
        "Message": "no pod matches",
    }


def test_an_objective_shows_its_pool_its_priority_and_whether_it_is_in_use(api: ApiServer) -> None:
    objective = {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": "columns"},
        "spec": {"poolRef": {"name": "pool"}, "priority": -1},
    }
    assert api.create(OBJECTIVES, objective).code == 201
    status = {"conditions": [condition("Accepted", "True", "Accepted")]}
    api.request("PATCH", f"{OBJECTIVES}/columns/status", {"status": status}, MERGE_PATCH)

    row = api.row(f"{OBJECTIVES}/columns")

    assert row.pop("Age")
    assert row == {"Name": "columns", "Inference Pool": "pool", "Priority": "-1", "Accepted": "True"}


def test_short_names_are_served(api: ApiServer) -> None:
    kinds = {
        resource["name"]: resource.get("shortNames")
        for group in ("headroom.dev/v1alpha1", "inference.networking.k8s.io/v1")
        for resource in api.get(f"/apis/{group}").body["resources"]
    }

    assert (kinds["endpointpickers"], kinds["inferencepools"]) == (["epick"], ["infpool"])
