"""The EndpointPickers, InferenceObjectives and rewrites that the API server accepts and refuses."""

from itertools import count
from typing import Any

import pytest

from api_server import APPLY, MERGE_PATCH, ApiServer
from inference_api.endpoint_picker import EndpointPicker
from inference_api.inference_model_rewrite import InferenceModelRewrite
from inference_api.inference_objective import InferenceObjective

PICKERS = "/apis/headroom.dev/v1alpha1/namespaces/default/endpointpickers"
OBJECTIVES = "/apis/llm-d.ai/v1alpha2/namespaces/default/inferenceobjectives"
REWRITES = "/apis/llm-d.ai/v1alpha2/namespaces/default/inferencemodelrewrites"

_numbers = count()


def picker(spec: dict[str, Any] | None) -> dict[str, Any]:
    named: dict[str, Any] = {"metadata": {"name": f"picker-{next(_numbers)}"}}
    body = {} if spec is None else {"spec": spec}
    return {"apiVersion": "headroom.dev/v1alpha1", "kind": "EndpointPicker", **named, **body}


def objective(spec: dict[str, Any]) -> dict[str, Any]:
    named = {"metadata": {"name": f"objective-{next(_numbers)}"}}
    return {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective", **named, "spec": spec}


def rewrite(spec: dict[str, Any]) -> dict[str, Any]:
    named = {"metadata": {"name": f"rewrite-{next(_numbers)}"}}
    return {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceModelRewrite", **named, "spec": spec}


PICKERS_ACCEPTED: dict[str, dict[str, Any] | None] = {
    "no spec": None,
    "empty": {},
    "all": {
        "paused": True,
        "image": "registry.example.com/headroom-epp:0.1.0",
        "config": {"plugins": [{"type": "queue-scorer", "parameters": {"any": {"thing": [1, 2.5]}}}]},
        "resources": {"limits": {"cpu": 2, "memory": "1Gi"}, "requests": {"cpu": "500m"}},
        "accessLog": True,
        "tracing": {"endpoint": "http://[fd00::1]:4318/base", "samplingPercent": 0},
        "proxy": {"mode": "Deployment", "replicas": 2, "image": "envoy:1", "resources": {}},
        "flowControl": {
            "enabled": True,
            "trustTenantHeaders": True,
            "defaultObjective": "chat.v2",
            "modelObjectives": [{"model": "meta/llama-3 8b", "objective": "batch"}],
        },
        "latencyPredictor": {
            "enabled": True,
            "predictionServerCount": 16,
            "streamingMode": True,
            "mode": "All",
            "quantile": 0.95,
            "holdout": 50,
            "image": "predictor:1",
            "retrain": {"leastSamples": 10, "longestPause": "1h30m", "maxAge": "0.5h"},
            "resources": {"trainer": {"limits": {"cpu": 1}}, "predictionServer": {}},
            "storage": {"sizeLimit": "8Gi", "claimName": "learned"},
        },
    },
    "a request equal to its limit": {
        "resources": {"limits": {"memory": "1Gi", "cpu": 1}, "requests": {"memory": "1024Mi", "cpu": "1000m"}}
    },
    "config with its own header": {
        "config": {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
    },
}
PICKERS_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "trusted tenants without a queue": (
        {"flowControl": {"trustTenantHeaders": True}},
        "trustTenantHeaders acts on the queue: set enabled to true as well",
    ),
    "an objective that no object can be called": (
        {"flowControl": {"defaultObjective": "Chat!"}},
        "should match",
    ),
    "two objectives of one model": (
        {"flowControl": {"modelObjectives": [{"model": "m", "objective": o} for o in ("a", "b")]}},
        "Duplicate value",
    ),
    "a model without an objective": (
        {"flowControl": {"modelObjectives": [{"model": "m"}]}},
        "objective: Required",
    ),
    "tracing without a host": ({"tracing": {"endpoint": "http://:4318"}}, "should match"),
    "tracing over gRPC": ({"tracing": {"endpoint": "collector:4317"}}, "should match"),
    "tracing without an endpoint": ({"tracing": {"samplingPercent": 5}}, "spec.tracing.endpoint: Required"),
    "tracing of more than all": (
        {"tracing": {"endpoint": "http://collector:4318", "samplingPercent": 101}},
        "should be less than or equal to 100",
    ),
    "prediction for all that nothing measures": (
        {"latencyPredictor": {"mode": "All", "holdout": 0}},
        "mode All needs a holdout above 0",
    ),
    "no prediction server": (
        {"latencyPredictor": {"predictionServerCount": 0}},
        "greater than or equal to 1",
    ),
    "too many prediction servers": (
        {"latencyPredictor": {"predictionServerCount": 17}},
        "less than or equal to 16",
    ),
    "a bound that is the median": ({"latencyPredictor": {"quantile": 0.5}}, "greater than 0.5"),
    "a bound that holds always": ({"latencyPredictor": {"quantile": 1}}, "less than 1"),
    "half of all requests and more held out": (
        {"latencyPredictor": {"holdout": 51}},
        "less than or equal to 50",
    ),
    "no time between trainings": (
        {"latencyPredictor": {"retrain": {"longestPause": "500ms"}}},
        "must be at least 1s",
    ),
    "a time without a unit": ({"latencyPredictor": {"retrain": {"maxAge": "60"}}}, "should match"),
    "a claim in capitals": ({"latencyPredictor": {"storage": {"claimName": "Learned"}}}, "should match"),
    "unknown proxy mode": ({"proxy": {"mode": "Sidecar"}}, 'supported values: "None", "Deployment"'),
    "no proxy replicas": ({"proxy": {"replicas": 0}}, "should be greater than or equal to 1"),
    "image with a space": ({"image": "a b"}, "should match"),
    "quantity": ({"resources": {"limits": {"memory": "1 GB"}}}, "should match"),
    "request above its limit": (
        {"resources": {"limits": {"cpu": 1}, "requests": {"cpu": "1001m"}}},
        "a request must not be greater than the limit of the same name",
    ),
    "proxy request above its limit": (
        {"proxy": {"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1025Mi"}}}},
        "a request must not be greater than the limit of the same name",
    ),
    "fractional number": ({"resources": {"limits": {"cpu": 0.5}}}, "must be of type integer"),
    "config of another kind": (
        {"config": {"kind": "SchedulerConfig"}},
        'supported values: "EndpointPickerConfig"',
    ),
    "config of an unknown version": ({"config": {"apiVersion": "example.com/v1"}}, "supported values"),
    "config that is a text": ({"config": "plugins: []"}, "must be of type object"),
    "paused maybe": ({"paused": "maybe"}, "must be of type boolean"),
}


@pytest.mark.parametrize("spec", PICKERS_ACCEPTED.values(), ids=PICKERS_ACCEPTED.keys())
def test_a_picker_comes_back_as_the_user_wrote_it(api: ApiServer, spec: dict[str, Any] | None) -> None:
    answer = api.create(PICKERS, picker(spec))

    assert answer.code == 201, answer.message
    assert answer.body.get("spec") == spec  # no default is frozen into it
    assert (
        EndpointPicker.model_validate(answer.body).spec
        == EndpointPicker.model_validate({"spec": spec or {}}).spec
    )


@pytest.mark.parametrize(("spec", "words"), PICKERS_REFUSED.values(), ids=PICKERS_REFUSED.keys())
def test_a_broken_picker_is_refused(api: ApiServer, spec: dict[str, Any], words: str) -> None:
    answer = api.create(PICKERS, picker(spec))

    assert answer.code == 422
    assert words.lower() in answer.message.lower()


def test_two_writers_of_conditions_keep_theirs(api: ApiServer) -> None:
    made = api.create(PICKERS, picker({})).body
    path = f"{PICKERS}/{made['metadata']['name']}/status"
    for kind in ("Accepted", "Ready"):
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Fine",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        body = {
            "apiVersion": "headroom.dev/v1alpha1",
            "kind": "EndpointPicker",
            "metadata": {"name": made["metadata"]["name"]},
            "status": {"conditions": [condition]},
        }
        answer = api.request("PATCH", f"{path}?fieldManager=writer-{kind.lower()}", body, APPLY)
        assert answer.code == 200, answer.message

    assert {c["type"] for c in answer.body["status"]["conditions"]} == {"Accepted", "Ready"}


OBJECTIVES_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no pool": ({"priority": 1}, "spec.poolRef: Required value"),
    "pool without name": ({"poolRef": {}}, "spec.poolRef.name: Required value"),
    "priority beyond 32 bits": ({"poolRef": {"name": "p"}, "priority": 2**31}, "int32"),
    "priority as text": ({"poolRef": {"name": "p"}, "priority": "high"}, "must be of type integer"),
    "group in capitals": ({"poolRef": {"name": "p", "group": "Example.com"}}, "should match"),
}


@pytest.mark.parametrize("priority", [None, 0, -(2**31), 2**31 - 1])
def test_an_objective_of_any_priority_is_accepted(api: ApiServer, priority: int | None) -> None:
    spec = {"poolRef": {"name": "pool"}} | ({} if priority is None else {"priority": priority})

    answer = api.create(OBJECTIVES, objective(spec))

    assert answer.code == 201, answer.message
    read = InferenceObjective.model_validate(answer.body).spec
    assert read is not None
    assert (read.priority, read.pool_ref.kind) == (priority, "InferencePool")


@pytest.mark.parametrize(("spec", "words"), OBJECTIVES_REFUSED.values(), ids=OBJECTIVES_REFUSED.keys())
def test_a_broken_objective_is_refused(api: ApiServer, spec: dict[str, Any], words: str) -> None:
    answer = api.create(OBJECTIVES, objective(spec))

    assert answer.code == 422
    assert words.lower() in answer.message.lower()


def test_an_objective_without_a_controller_is_pending(api: ApiServer) -> None:
    name = api.create(OBJECTIVES, objective({"poolRef": {"name": "pool"}})).body["metadata"]["name"]

    answer = api.request("PATCH", f"{OBJECTIVES}/{name}/status", {"status": {}}, MERGE_PATCH)

    status = InferenceObjective.model_validate(answer.body).status
    assert status is not None
    assert [(c.type, c.status, c.reason) for c in status.conditions] == [("Ready", "Unknown", "Pending")]


def test_a_rewrite_is_accepted_and_can_be_read(api: ApiServer) -> None:
    rule = {"matches": [{"model": {"value": "a"}}], "targets": [{"modelRewrite": "b", "weight": 3}]}

    answer = api.create(REWRITES, rewrite({"poolRef": {"name": "pool"}, "rules": [rule, {}]}))

    assert answer.code == 201, answer.message
    spec = InferenceModelRewrite.model_validate(answer.body).spec
    assert spec is not None
    assert spec.rules[0].matches[0].model.type == "Exact"
    assert spec.rules[0].targets[0].weight == 3


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        pytest.param({"targets": []}, "should have at least 1 items", id="no targets"),
        pytest.param(
            {"targets": [{"modelRewrite": "b", "weight": 0}]}, "greater than or equal to 1", id="weight 0"
        ),
        pytest.param({"targets": [{"weight": 1}]}, "modelRewrite: Required value", id="target without model"),
        pytest.param({"matches": [{"model": {"value": ""}}]}, "at least 1 chars", id="empty match"),
        pytest.param(
            {"matches": [{"model": {"type": "Prefix", "value": "a"}}]}, '"Exact"', id="unknown match"
        ),
    ],
)
def test_a_broken_rewrite_is_refused(api: ApiServer, rule: dict[str, Any], words: str) -> None:
    answer = api.create(REWRITES, rewrite({"poolRef": {"name": "pool"}, "rules": [rule]}))

    assert answer.code == 422
    assert words.lower() in answer.message.lower()
