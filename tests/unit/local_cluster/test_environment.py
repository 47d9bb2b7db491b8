"""A container's environment and command line, as Kubernetes defines them."""

from typing import Any

import pytest

from local_cluster.node.environment import (
    MissingReferenceError,
    PodFacts,
    command_line,
    container_environment,
    expand,
    field_value,
)

FACTS = PodFacts("127.64.0.1", "127.0.0.1")
POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u-1",
        "labels": {"app": "web", "a": 'quoted "x"'},
        "annotations": {"example.com/note": "hello"},
    },
    "spec": {"nodeName": "local", "serviceAccountName": "robot", "containers": []},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("cost: 5$", "cost: 5$"),
        ("$()", "$()"),
    ],
)
def test_references_are_replaced_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['example.com/note']", "hello"),
        ("metadata.labels", 'a="quoted \\"x\\""\napp="web"'),
        ("spec.nodeName", "local"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "127.64.0.1"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_the_downward_api_gives_fields_of_the_pod(path: str, expected: str) -> None:
    assert field_value(path, POD, FACTS) == expected


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(MissingReferenceError, match=r"spec\.colour"):
        field_value("spec.colour", POD, FACTS)


def environment(container: dict[str, Any], **config_maps: dict[str, Any]) -> dict[str, str]:
    return container_environment(container, POD, FACTS, config_maps.get, {"PATH": "/bin"})


def test_entries_build_on_earlier_ones_only() -> None:
    entries = [
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "LATE", "value": "x"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "URL", "value": "http://$(IP):80"},
        {"name": "EMPTY"},
    ]
    assert environment({"env": entries}) == {
        "PATH": "/bin",
        "EARLY": "$(LATE)",
        "LATE": "x",
        "IP": "127.64.0.1",
        "URL": "http://127.64.0.1:80",
        "EMPTY": "",
    }


def test_config_maps_come_whole_or_by_key_and_env_wins() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "all"}, "prefix": "P_"}],
        "env": [
            {"name": "P_A", "value": "mine"},
            {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "all", "key": "B"}}},
        ],
    }
    found = environment(container, all={"data": {"A": "1", "B": "2"}})
    assert (found["P_A"], found["P_B"], found["K"]) == ("mine", "2", "2")


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "B"}}}]},
        {"env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "there", "key": "gone"}}}]},
        {"envFrom": [{"configMapRef": {"name": "gone"}}]},
    ],
)
def test_a_missing_reference_is_an_error_unless_optional(container: dict[str, Any]) -> None:
    with pytest.raises(MissingReferenceError, match="gone"):
        environment(container, there={"data": {}})
    for entry in container.get("env", ()):
        entry["valueFrom"]["configMapKeyRef"]["optional"] = True
    for entry in container.get("envFrom", ()):
        entry["configMapRef"]["optional"] = True
    assert environment(container, there={"data": {}}) == {"PATH": "/bin"}


def test_command_replaces_the_entry_point_and_args_follow() -> None:
    variables = {"IP": "1.2.3.4"}
    assert command_line({"args": ["--bind=$(IP)"]}, ("epp", "run"), variables) == [
        "epp",
        "run",
        "--bind=1.2.3.4",
    ]
    assert command_line({"command": ["sh", "$(IP)"], "args": ["x"]}, ("epp",), variables) == [
        "sh",
        "1.2.3.4",
        "x",
    ]
