"""The InferencePools that the API server accepts and refuses, and the messages of the refusals."""

from copy import deepcopy
from itertools import count
from typing import Any

import pytest

from api_server import MERGE_PATCH, Answer, ApiServer
from inference_api.inference_pool import InferencePool

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
PORT_REQUIRED = "port is required when kind is 'Service' or unspecified (defaults to 'Service')"
PORTS_UNIQUE = "port number must be unique"

_numbers = count()


def pool_with(**changes: Any) -> dict[str, Any]:
    """A valid pool, changed at dotted paths (`__` for the dot); None removes."""
    pool: dict[str, Any] = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": f"pool-{next(_numbers)}", "namespace": "default"},
        "spec": {
            "targetPorts": [{"number": 8000}],
            "selector": {"matchLabels": {"app": "model-server"}},
            "endpointPickerRef": {"name": "epp", "kind": "Service", "port": {"number": 9002}},
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = pool["spec"]
        for part in parents:
            target = target[part]
        if value is None:
            del target[last]
        else:
            target[last] = deepcopy(value)
    return pool


def ports(*numbers: int) -> list[dict[str, int]]:
    return [{"number": number} for number in numbers]


ACCEPTED: dict[str, dict[str, Any]] = {
    "base": {},
    "h2c": {"appProtocol": "kubernetes.io/h2c"},
    "four ports": {"targetPorts": ports(8000, 80, 8081, 443)},
    "eight ports": {"targetPorts": ports(*range(8000, 8008))},
    "lowest and highest port": {"targetPorts": ports(1, 65535)},
    "64 labels": {"selector__matchLabels": {f"l{i}": "x" for i in range(64)}},
    "empty label value": {"selector__matchLabels": {"app": ""}},
    "label value of 63": {"selector__matchLabels": {"app": "x" * 63}},
    "bad label key, which the schema cannot find": {"selector__matchLabels": {"-/bad key!": "x"}},
    "FailOpen": {"endpointPickerRef__failureMode": "FailOpen"},
    "no picker (v1.6)": {"endpointPickerRef": None},
    "other kind without port": {"endpointPickerRef": {"group": "example.com", "kind": "Picker", "name": "e"}},
    "kind unset, with port": {"endpointPickerRef": {"name": "epp", "port": {"number": 9002}}},
    "picker name of 253": {"endpointPickerRef__name": "x" * 253},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "kind unset, port unset": ({"endpointPickerRef": {"name": "epp"}}, PORT_REQUIRED),
    "kind Service, port unset": ({"endpointPickerRef": {"name": "epp", "kind": "Service"}}, PORT_REQUIRED),
    "Service of another group, port unset": (
        {"endpointPickerRef": {"name": "epp", "group": "example.com", "kind": "Service"}},
        PORT_REQUIRED,
    ),
    "port twice": ({"targetPorts": ports(8000, 80, 8000, 443)}, PORTS_UNIQUE),
    "no ports": ({"targetPorts": []}, "should have at least 1 items"),
    "ports absent": ({"targetPorts": None}, "spec.targetPorts: Required value"),
    "nine ports": ({"targetPorts": ports(*range(8000, 8009))}, "must have at most 8 items"),
    "port 0": ({"targetPorts": ports(0)}, "should be greater than or equal to 1"),
    "port 65536": ({"targetPorts": ports(65536)}, "should be less than or equal to 65535"),
    "port without number": ({"targetPorts": [{}]}, "spec.targetPorts[0].number: Required value"),
    "no selector": ({"selector": None}, "spec.selector: Required value"),
    "no labels": ({"selector__matchLabels": {}}, "should have at least 1 properties"),
    "65 labels": (
        {"selector__matchLabels": {f"l{i}": "x" for i in range(65)}},
        "Too many: 65: must have at most 64 items",
    ),
    "label value of 64": ({"selector__matchLabels": {"app": "x" * 64}}, "Too long: may not be more than 63"),
    "label value with leading dash": ({"selector__matchLabels": {"app": "-x"}}, "should match"),
    "unknown protocol": ({"appProtocol": "https"}, 'supported values: "http", "kubernetes.io/h2c"'),
    "FailClosed": (
        {"endpointPickerRef__failureMode": "FailClosed"},
        'supported values: "FailOpen", "FailClose"',
    ),
    "group in capitals": ({"endpointPickerRef__group": "Example.com"}, "should match"),
    "group with a slash": ({"endpointPickerRef__group": "example.com/v1"}, "should match"),
    "group of 254": ({"endpointPickerRef__group": "x" * 254}, "Too long: may not be more than 253"),
    "empty kind": ({"endpointPickerRef__kind": ""}, "should be at least 1 chars long"),
    "kind with a dot": ({"endpointPickerRef__kind": "a.b"}, "should match"),
    "picker name absent": ({"endpointPickerRef__name": None}, "spec.endpointPickerRef.name: Required value"),
    "picker name empty": ({"endpointPickerRef__name": ""}, "should be at least 1 chars long"),
    "picker name of 254": ({"endpointPickerRef__name": "x" * 254}, "Too long: may not be more than 253"),
    "picker port 0": ({"endpointPickerRef__port": {"number": 0}}, "should be greater than or equal to 1"),
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_valid_pool_is_accepted_and_can_be_read(api: ApiServer, changes: dict[str, Any]) -> None:
    answer = api.create(POOLS, pool_with(**changes))

    assert answer.code == 201, answer.message
    pool = InferencePool.model_validate(answer.body)
    assert pool.metadata.uid
    assert pool.to_json()["spec"] == answer.body["spec"]


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_broken_pool_is_refused_with_a_reason(api: ApiServer, changes: dict[str, Any], words: str) -> None:
    answer = api.create(POOLS, pool_with(**changes))

    assert answer.code == 422
    assert words.lower() in answer.message.lower()


def test_a_pool_without_spec_is_refused(api: ApiServer) -> None:
    pool = pool_with()
    del pool["spec"]

    answer = api.create(POOLS, pool)

    assert (answer.code, "spec: Required value" in answer.message) == (422, True)


def test_the_servers_defaults_equal_the_readers(api: ApiServer) -> None:
    sparse = pool_with(endpointPickerRef={"name": "epp", "port": {"number": 9002}})
    unaided = InferencePool.model_validate(sparse)

    answer = api.create(POOLS, sparse)

    assert answer.body["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"
    assert InferencePool.model_validate(answer.body).spec == unaided.spec


def condition(kind: str = "Accepted", **changes: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        **changes,
    }


def parent(**changes: Any) -> dict[str, Any]:
    return {
        "parentRef": {"name": "gateway", "namespace": "default"},
        "controllerName": "example.net/gateway-controller",
        "conditions": [condition()],
        **changes,
    }


def write_parents(api: ApiServer, parents: list[dict[str, Any]]) -> Answer:
    name = api.create(POOLS, pool_with()).body["metadata"]["name"]
    return api.request("PATCH", f"{POOLS}/{name}/status", {"status": {"parents": parents}}, MERGE_PATCH)


STATUS_ACCEPTED: dict[str, list[dict[str, Any]]] = {
    "one parent": [parent()],
    "32 parents": [parent()] * 32,
    "no controller name": [{"parentRef": {"name": "gateway"}}],
    "eight conditions": [parent(conditions=[condition(f"Type{i}") for i in range(8)])],
    "condition type with a domain": [parent(conditions=[condition("example.net/Exported")])],
}
STATUS_REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "33 parents": ([parent()] * 33, "must have at most 32 items"),
    "nine conditions": (
        [parent(conditions=[condition(f"Type{i}") for i in range(9)])],
        "must have at most 8 items",
    ),
    "condition twice": ([parent(conditions=[condition(), condition()])], "Duplicate value"),
    "controller without a slash": ([parent(controllerName="example.net")], "should match"),
    "parent without name": ([parent(parentRef={"namespace": "default"})], "parentRef.name: Required value"),
    "parentRef absent": ([{"conditions": []}], "parentRef: Required value"),
    "empty reason": ([parent(conditions=[condition(reason="")])], "should be at least 1 chars long"),
    "reason with a space": ([parent(conditions=[condition(reason="Not so")])], "should match"),
    "status maybe": ([parent(conditions=[condition(status="Maybe")])], 'supported values: "True", "False"'),
    "no message": (
        [parent(conditions=[{k: v for k, v in condition().items() if k != "message"}])],
        "message: Required value",
    ),
    "negative generation": (
        [parent(conditions=[condition(observedGeneration=-1)])],
        "should be greater than or equal to 0",
    ),
}


@pytest.mark.parametrize("parents", STATUS_ACCEPTED.values(), ids=STATUS_ACCEPTED.keys())
def test_a_valid_status_is_accepted_and_can_be_read(api: ApiServer, parents: list[dict[str, Any]]) -> None:
    answer = write_parents(api, parents)

    assert answer.code == 200, answer.message
    status = InferencePool.model_validate(answer.body).status
    assert status is not None
    assert len(status.parents) == len(parents)
    assert all(item.parent_ref.kind == "Gateway" for item in status.parents)


@pytest.mark.parametrize(("parents", "words"), STATUS_REFUSED.values(), ids=STATUS_REFUSED.keys())
def test_a_broken_status_is_refused(api: ApiServer, parents: list[dict[str, Any]], words: str) -> None:
    answer = write_parents(api, parents)

    assert answer.code == 422
    assert words.lower() in answer.message.lower()
