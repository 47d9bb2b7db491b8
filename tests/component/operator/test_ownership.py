"""Whose is what: take-up, letting go, names taken, and what cannot work."""

import json
from typing import Any

import pytest

from operator_cluster import Cluster, Space, eventually, kubectl, picker, pool, service

REPEATS = 25


def taken_up(space: Space, name: str) -> None:
    eventually(lambda: f"deployment/{name}-epp" in space.children(), f"{name} taken up")


def says(space: Space, name: str, reason: str) -> None:
    eventually(lambda: space.word(name) == reason, f"{name}: {reason}")


@pytest.mark.parametrize("pool_first", [True, False])
def test_a_pool_with_the_users_own_service_in_one_file_is_never_managed(
    cluster: Cluster, space: Space, pool_first: bool
) -> None:
    names = [f"p{number}" for number in range(REPEATS)]
    for name in names:
        pair = [pool(name), service(f"{name}-epp")]
        text = json.dumps({"kind": "List", "apiVersion": "v1", "items": pair if pool_first else pair[::-1]})
        if name == names[0]:
            kubectl(cluster.plane, "apply", "-n", space.name, "-f", "-", text=text)
            continue
        for body in json.loads(text)["items"]:
            space.create("pool" if body["kind"] == "InferencePool" else "service", body)
    for name in names:
        says(space, name, "ServiceNotOurs")
    assert not space.children()
    for name in names:
        assert (space.get("service", f"{name}-epp") or {})["spec"]["selector"] == {"app": "my-picker"}
    told = [e for e in space.all("event") if e["reason"] == "ServiceNotOurs"]
    assert len(told) == REPEATS


@pytest.mark.parametrize("pool_first", [True, False])
def test_a_users_endpoint_picker_is_always_applied(cluster: Cluster, space: Space, pool_first: bool) -> None:
    own = picker("llm", image="mine:7", resources={"requests": {"cpu": "2"}})
    pair = [pool("llm"), own] if pool_first else [own, pool("llm")]
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": pair})
    kubectl(cluster.plane, "apply", "-n", space.name, "-f", "-", text=text)
    taken_up(space, "llm")
    container = (space.get("deployment", "llm-epp") or {})["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "mine:7"
    assert container["resources"] == {"requests": {"cpu": "2"}}
    assert not (space.get("picker", "llm") or {})["metadata"].get("ownerReferences")
    space.delete("pool", "llm")
    eventually(lambda: not space.children(), "children gone")
    eventually(lambda: space.condition("llm", "Ready")[:2] == ("False", "PoolNotFound"))


def test_an_endpoint_picker_applied_over_ours_becomes_the_users(cluster: Cluster, space: Space) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    text = json.dumps(picker("llm", image="mine:8"))
    kubectl(cluster.plane, "apply", "-n", space.name, "-f", "-", text=text)

    def image() -> str:
        deployment = space.get("deployment", "llm-epp") or {}
        return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])

    eventually(lambda: image() == "mine:8")
    eventually(lambda: not (space.get("picker", "llm") or {})["metadata"].get("ownerReferences"))
    space.delete("pool", "llm")
    eventually(lambda: space.condition("llm", "Ready")[1] == "PoolNotFound")


def test_a_users_endpoint_picker_without_pool_says_so(space: Space) -> None:
    space.create("picker", picker("alone"))
    eventually(lambda: space.condition("alone", "Ready")[:2] == ("False", "PoolNotFound"))
    assert "InferencePool alone" in space.condition("alone", "Accepted")[2]


def test_the_older_of_two_pools_has_the_name(space: Space) -> None:
    space.create("pool", pool("old", "shared"))
    eventually(lambda: "deployment/shared" in space.children())
    space.create("pool", pool("young", "shared"))
    eventually(lambda: space.condition("young", "Accepted")[:2] == ("False", "PickerNameTaken"))
    assert "pool old" in space.condition("young", "Accepted")[2]
    assert (space.get("deployment", "shared") or {})["metadata"]["annotations"][
        "headroom.dev/pool-name"
    ] == "old"
    space.delete("pool", "old")

    def inherited() -> bool:
        live = space.get("deployment", "shared")
        return bool(live and live["metadata"]["annotations"]["headroom.dev/pool-name"] == "young")

    eventually(inherited, "the younger pool takes the name over")


def test_a_mistyped_picker_name_takes_nothing_down(space: Space) -> None:
    def name_picker(name: str) -> None:
        space.merge("pool", "llm", {"spec": {"endpointPickerRef": {"name": name}}})

    def uid() -> str:
        return str((space.get("deployment", "llm-epp") or {}).get("metadata", {}).get("uid"))

    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    before, first = space.children(), uid()
    name_picker("vllm.qwen")
    eventually(lambda: space.condition("llm", "Accepted")[:2] == ("False", "InvalidPickerName"))
    eventually(lambda: space.word("llm") == "InvalidPickerName")
    assert (space.children(), uid()) == (before, first)
    name_picker("llm-epp")
    eventually(lambda: space.condition("llm", "Accepted")[:2] == ("True", "Accepted"))
    assert (space.children(), uid()) == (before, first)
    name_picker("other-epp")
    eventually(lambda: "deployment/llm-epp" not in space.children())
    eventually(lambda: [e for e in space.all("event") if e["reason"] == "Removed"])
    (event,) = [e for e in space.all("event") if e["reason"] == "Removed"]
    assert "Deployment llm-epp" in event["message"]


@pytest.mark.parametrize("taker", ["selector", "label"])
def test_a_service_that_somebody_takes_is_let_go_with_all_of_ours(space: Space, taker: str) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    if taker == "selector":
        space.apply("service", {**service("llm-epp"), "apiVersion": "v1", "kind": "Service"}, "helm")
    else:
        gone = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}
        space.merge("service", "llm-epp", gone)
    eventually(lambda: space.word("llm") == "ServiceNotOurs")
    left = {"service/llm-epp"} if taker == "selector" else set()
    eventually(lambda: space.children() == left, "our other children gone")
    assert space.get("service", "llm-epp")
    assert [e for e in space.all("event") if e["reason"] == "LetGo"]


def test_the_managed_annotation_holds_us_off_and_lets_us_take_over(cluster: Cluster, space: Space) -> None:
    body = pool("llm")
    body["metadata"]["annotations"] = {"headroom.dev/managed": "false"}
    space.create("pool", body)
    space.create("picker", picker("llm"))
    eventually(lambda: space.condition("llm", "Accepted")[:2] == ("False", "NotManaged"))
    space.create("service", service("llm-epp"))
    space.merge("pool", "llm", {"metadata": {"annotations": {"headroom.dev/managed": "true"}}})
    taken_up(space, "llm")
    live = space.get("service", "llm-epp") or {}
    assert live["spec"]["selector"]["app"] == "llm-epp"
    space.merge("pool", "llm", {"metadata": {"annotations": {"headroom.dev/managed": "false"}}})
    eventually(lambda: space.condition("llm", "Accepted")[1] == "NotManaged")
    eventually(lambda: space.word("llm") == "NotManaged")
    space.delete("config", "llm-epp-config")
    assert "deployment/llm-epp" in space.children()
    assert "config/llm-epp-config" not in space.children()


def test_an_external_name_service_is_refused_and_left(space: Space) -> None:
    space.create("service", service("llm-epp", type="ExternalName", externalName="example.com", ports=[]))
    space.create("pool", pool("llm"))
    eventually(lambda: space.word("llm") == "ServiceIsExternalName")
    assert not space.children()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a reference to another kind": (
        {"endpointPickerRef": {"group": "example.com", "kind": "Thing", "name": "x"}},
        "UnsupportedRefKind",
    ),
    "no reference": ({"endpointPickerRef": None}, "EndpointPickerRefMissing"),
    "a name no Service can have": (
        {"endpointPickerRef": {"name": "Not_A.Name", "port": {"number": 9002}}},
        "InvalidPickerName",
    ),
    "a key no label can have": ({"selector": {"matchLabels": {"not a key!": "x"}}}, "InvalidSelector"),
}


def test_what_cannot_work_says_why_and_makes_nothing(cluster: Cluster, space: Space) -> None:
    for number, (spec, _) in enumerate(BAD.values()):
        body = pool(f"bad-{number}", **spec)
        body["spec"] = {key: value for key, value in body["spec"].items() if value is not None}
        space.create("pool", body)
    for number, (_, reason) in enumerate(BAD.values()):
        name = f"bad-{number}"
        says(space, name, reason)
        assert space.condition(name, "Accepted")[:2] == ("False", reason)
        assert space.condition(name, "Ready")[:2] == ("False", reason)
    assert space.children() == {f"picker/bad-{number}" for number in range(len(BAD))}


def test_an_object_of_a_childs_name_that_is_not_ours_is_not_forced(space: Space) -> None:
    space.create("config", {"metadata": {"name": "llm-epp-config"}, "data": {"mine": "yes"}})
    space.create("pool", pool("llm"))
    eventually(lambda: space.condition("llm", "ResolvedRefs")[:2] == ("False", "NameTaken"))
    assert (space.get("config", "llm-epp-config") or {})["data"] == {"mine": "yes"}
    space.delete("config", "llm-epp-config")
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True", "healed once the name is free")


def test_what_belongs_to_another_pool_is_never_forced(space: Space) -> None:
    space.create("pool", pool("elder", picker="x-proxy"))
    eventually(lambda: space.get("deployment", "x-proxy"))
    space.create("picker", picker("young", proxy={"mode": "Deployment"}))
    space.create("pool", pool("young", picker="x"))
    eventually(lambda: space.condition("young", "ResolvedRefs")[:2] == ("False", "NameTaken"))
    assert "pool elder" in space.condition("young", "ResolvedRefs")[2]
    assert space.condition("elder", "ResolvedRefs")[0] == "True"
    assert "deployment/x" in space.children(), "its picker runs all the same"
    space.delete("pool", "elder")
    eventually(lambda: space.condition("young", "ResolvedRefs")[0] == "True", "the name is free")
    assert (space.get("deployment", "x-proxy") or {})["metadata"]["ownerReferences"][0]["name"] == "young"


def test_an_account_that_is_not_ours_is_given_no_rights(space: Space) -> None:
    space.create("account", {"metadata": {"name": "llm-epp"}})
    space.create("pool", pool("llm"))
    eventually(lambda: space.condition("llm", "ResolvedRefs")[:2] == ("False", "NameTaken"))
    assert space.children() == {"picker/llm", "service/llm-epp"}


def test_a_proxy_that_cannot_be_named_costs_no_picker(space: Space) -> None:
    name = "p" * 63
    space.create("pool", pool("llm", picker=name))
    eventually(lambda: space.get("deployment", name))
    space.merge("picker", "llm", {"spec": {"proxy": {"mode": "Deployment"}}})
    eventually(lambda: space.condition("llm", "ProxyReady")[:2] == ("False", "InvalidProxyName"))
    assert space.get("deployment", name)


def test_a_role_binding_of_before_to_another_role_is_made_anew(space: Space) -> None:
    """The API server lets nobody change a roleRef, so an apply would be refused for ever."""
    marks = {
        "name": "llm-epp",
        "labels": {"app.kubernetes.io/managed-by": "headroom"},
        "annotations": {"headroom.dev/pool-name": "llm"},
    }
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    before = space.create("binding", {"metadata": marks, "roleRef": role})
    space.create("pool", pool("llm"))
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")
    after = space.get("binding", "llm-epp") or {}
    assert after["roleRef"]["name"] == "headroom-epp"
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
