"""A pool becomes a running picker, is healed, and goes without a trace."""

import json

from operator_cluster import Cluster, OperatorProcess, Space, eventually, make_ready, picker, pool

CHILDREN = {
    "picker/{}",
    "service/{}-epp",
    "account/{}-epp",
    "binding/{}-epp",
    "config/{}-epp-config",
    "config/{}-epp-priorities",
    "deployment/{}-epp",
}


def children_of(name: str) -> set[str]:
    return {child.format(name) for child in CHILDREN}


def taken_up(space: Space, name: str) -> None:
    eventually(lambda: space.children() >= children_of(name), f"children of {name}")


def await_resyncs(operator: OperatorProcess, count: int) -> None:
    eventually(lambda: operator.resyncs() >= count, f"{count} resyncs")


def quiet(cluster: Cluster, operator: OperatorProcess, space: Space) -> list[str]:
    """Return the writes so far, once two whole resyncs have gone by without a new one."""
    for _ in range(5):
        resyncs, writes = operator.resyncs(), cluster.writes(space.name)
        await_resyncs(operator, resyncs + 2)
        if cluster.writes(space.name) == writes:
            return writes
    raise AssertionError(f"no silence; last writes: {writes[-5:]}")


def test_a_pool_gets_its_children_and_is_ready_when_they_are(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    body = space.create("pool", pool("llm"))
    taken_up(space, "llm")
    assert space.children() == children_of("llm")
    assert (space.get("service", "llm-epp") or {})["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "name": "llm",
            "uid": body["metadata"]["uid"],
            "controller": True,
        }
    ]
    eventually(lambda: space.condition("llm", "Accepted")[0] == "True")
    eventually(lambda: space.condition("llm", "PickerReady")[:2] == ("False", "PodsNotReady"))
    eventually(lambda: space.condition("llm", "EndpointsReady")[:2] == ("False", "NoEndpoints"))
    eventually(lambda: space.word("llm") == "PodsNotReady")

    space.create("pod", {"metadata": {"name": "m0", "labels": {"app": "llm"}}, "spec": one_container()})
    eventually(lambda: space.condition("llm", "EndpointsReady")[1] == "EndpointsNotReady")
    make_ready(space, "llm")
    eventually(lambda: [p for p in space.all("pod") if p["metadata"]["labels"]["app"] == "llm-epp"])
    make_ready(space, "llm-epp")
    eventually(lambda: space.condition("llm", "Ready")[:2] == ("True", "Ready"))
    eventually(lambda: space.word("llm") == "Ready")
    # Nothing listens at the address of the pod, which is no reason to say that the picker does not serve.
    eventually(lambda: space.condition("llm", "ConfigAccepted")[:2] == ("Unknown", "NotAnswered"))
    assert space.condition("llm", "Ready")[0] == "True"
    status = (space.get("picker", "llm") or {})["status"]
    assert status["endpoints"] == {"ready": 1, "total": 1}
    assert status["readyReplicas"] == 1
    reasons = {event["reason"] for event in space.all("event") if event["involvedObject"]["name"] == "llm"}
    assert {"Accepted", "PickerReady", "EndpointsReady", "Ready"} <= reasons


def test_damage_is_healed_and_then_there_is_silence(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    before = quiet(cluster, operator, space)
    deployment = space.get("deployment", "llm-epp") or {}
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]

    space.delete("service", "llm-epp")
    space.delete("config", "llm-epp-config")
    where = "/spec/template/spec/containers/0/args/0"
    space.edit("deployment", "llm-epp", {"op": "replace", "path": where, "value": "--pool-name=other"})
    space.merge("account", "llm-epp", {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}})

    eventually(lambda: space.children() == children_of("llm"), "children healed")

    def args_healed() -> bool:
        live = space.get("deployment", "llm-epp") or {}
        return bool(live["spec"]["template"]["spec"]["containers"][0]["args"] == args)

    eventually(args_healed, "args healed")
    after = quiet(cluster, operator, space)
    assert len(after) - len(before) < 40, after[len(before) :]


def test_what_others_add_stays(cluster: Cluster, operator: OperatorProcess, space: Space) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    space.merge("deployment", "llm-epp", {"metadata": {"annotations": {"team": "blue"}}})
    space.merge("service", "llm-epp", {"metadata": {"labels": {"team": "blue"}}})
    quiet(cluster, operator, space)
    assert (space.get("deployment", "llm-epp") or {})["metadata"]["annotations"]["team"] == "blue"
    assert (space.get("service", "llm-epp") or {})["metadata"]["labels"]["team"] == "blue"


def test_a_changed_picker_name_moves_everything(space: Space) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    space.merge("pool", "llm", {"spec": {"endpointPickerRef": {"name": "other", "port": {"number": 9100}}}})
    wanted = {child.replace("llm-epp", "other") for child in children_of("llm")}
    eventually(lambda: space.children() == wanted, "children under the new name")
    ports = (space.get("service", "other") or {})["spec"]["ports"]
    assert [(p["port"], p["targetPort"]) for p in ports] == [(9100, 9100), (9090, 9090)]


def test_deleting_the_pool_deletes_all_and_nothing_ever_has_a_finalizer(space: Space) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    kinds = ("pool", "picker", "service", "account", "binding", "config", "deployment")
    bodies = [body for kind in kinds for body in space.all(kind)]
    assert not [body for body in bodies if body["metadata"].get("finalizers")]
    space.delete("pool", "llm")
    eventually(lambda: not space.children(), "children gone")


def test_a_recreated_pool_adopts_what_an_orphaning_delete_left(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    uid = (space.get("service", "llm-epp") or {})["metadata"]["uid"]
    space.delete("pool", "llm", "Orphan")
    eventually(lambda: space.get("pool", "llm") is None)
    assert space.children() == children_of("llm")
    body = space.create("pool", pool("llm"))

    def adopted() -> bool:
        live = space.get("service", "llm-epp") or {}
        owners = [owner["uid"] for owner in live["metadata"].get("ownerReferences", ())]
        return owners == [body["metadata"]["uid"]]

    eventually(adopted, "adopted")
    quiet(cluster, operator, space)
    assert (space.get("service", "llm-epp") or {})["metadata"]["uid"] == uid
    space.delete("pool", "llm")
    eventually(lambda: not space.children(), "children gone")


def test_two_pools_stay_apart(space: Space) -> None:
    space.create("pool", pool("one"))
    space.create("pool", pool("two"))
    taken_up(space, "one")
    taken_up(space, "two")
    for name in ("one", "two"):
        deployment = space.get("deployment", f"{name}-epp") or {}
        args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert f"--pool-name={name}" in args
        selector = (space.get("service", f"{name}-epp") or {})["spec"]["selector"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        assert selector["app"] == f"{name}-epp"
    space.delete("pool", "one")
    eventually(lambda: space.children() == children_of("two"), "children of two only")


def test_objectives_reach_the_table_and_are_accepted(space: Space) -> None:
    space.create("pool", pool("llm"))
    for name, priority in (("gold", 10), ("batch", -5)):
        space.create("objective", objective(name, "llm", priority))
    space.create("objective", objective("lost", "nowhere", 1))
    taken_up(space, "llm")

    def table() -> str:
        return str((space.get("config", "llm-epp-priorities") or {})["data"]["table.json"])

    eventually(lambda: '"gold"' in table() and '"batch"' in table(), "objectives in the table")
    assert "lost" not in table()
    eventually(lambda: accepted(space, "gold") == ("True", "Accepted"))
    eventually(lambda: accepted(space, "lost") == ("False", "PoolNotFound"))
    space.delete("objective", "batch")
    eventually(lambda: "batch" not in table(), "objective out of the table")


def test_rewrites_reach_the_table_and_are_told_what_counts(space: Space) -> None:
    space.create("pool", pool("llm"))
    space.create("rewrite", rewrite("alias", "llm", "small", {"tiny": 90, "tiny-v2": 10}))
    taken_up(space, "llm")

    def rules() -> list[tuple[str, list[str]]]:
        text = (space.get("config", "llm-epp-priorities") or {})["data"]["table.json"]
        return [(each["source"], each["models"]) for each in json.loads(text).get("rewrites", [])]

    eventually(lambda: rules() == [("alias", ["small"])], "the rewrite in the table")
    eventually(lambda: accepted(space, "alias", "rewrite") == ("True", "Accepted"))
    space.create("rewrite", rewrite("later", "llm", "small", {"other": 1}))
    eventually(lambda: rules() == [("alias", ["small"]), ("later", ["small"])], "the older one first")
    eventually(lambda: accepted(space, "later", "rewrite") == ("True", "Overlaps"))
    space.create("rewrite", rewrite("lost", "nowhere", "m", {"x": 1}))
    eventually(lambda: accepted(space, "lost", "rewrite") == ("False", "PoolNotFound"))
    space.delete("rewrite", "alias")
    eventually(lambda: rules() == [("later", ["small"])], "the rewrite out of the table")
    eventually(lambda: accepted(space, "later", "rewrite") == ("True", "Accepted"))


def test_the_proxy_comes_and_goes_with_its_entry_in_the_pool(space: Space) -> None:
    space.create("picker", picker("llm", proxy={"mode": "Deployment", "replicas": 2}))
    space.create("pool", pool("llm"))
    proxy = {"service/llm-epp-proxy", "deployment/llm-epp-proxy"}
    eventually(lambda: proxy <= space.children(), "proxy")
    assert (space.get("deployment", "llm-epp-proxy") or {})["spec"]["replicas"] == 2

    def parents() -> list[str]:
        body = space.get("pool", "llm") or {}
        return [p["parentRef"]["name"] for p in body.get("status", {}).get("parents", ())]

    eventually(lambda: parents() == ["llm-epp-proxy"])
    gateway = {"parentRef": {"name": "gw", "namespace": space.name}, "controllerName": "example.com/gw"}
    held = (space.get("pool", "llm") or {})["status"]["parents"]
    space.write_status("pool", "llm", {"parents": [gateway, *held]})
    space.merge("picker", "llm", {"spec": {"proxy": {"mode": "None"}}})
    eventually(lambda: not proxy & space.children(), "proxy gone")
    eventually(lambda: parents() == ["gw"])


def test_a_paused_picker_is_left_alone(cluster: Cluster, operator: OperatorProcess, space: Space) -> None:
    space.create("picker", picker("llm"))
    space.create("pool", pool("llm"))
    eventually(lambda: "deployment/llm-epp" in space.children())
    space.merge("picker", "llm", {"spec": {"paused": True}})
    eventually(lambda: space.condition("llm", "Accepted")[:2] == ("True", "Paused"))
    space.delete("config", "llm-epp-config")
    quiet(cluster, operator, space)
    assert "config/llm-epp-config" not in space.children()
    space.merge("picker", "llm", {"spec": {"paused": False}})
    eventually(lambda: "config/llm-epp-config" in space.children())


def objective(name: str, pool_name: str, priority: int) -> dict[str, object]:
    return {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": pool_name}, "priority": priority},
    }


def rewrite(name: str, pool_name: str, model: str, targets: dict[str, int]) -> dict[str, object]:
    rule = {
        "matches": [{"model": {"value": model}}],
        "targets": [{"modelRewrite": each, "weight": weight} for each, weight in targets.items()],
    }
    return {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": pool_name}, "rules": [rule]},
    }


def accepted(space: Space, name: str, kind: str = "objective") -> tuple[str, str]:
    body = space.get(kind, name) or {}
    for condition in body.get("status", {}).get("conditions", ()):
        if condition["type"] == "Accepted":
            return condition["status"], condition["reason"]
    return "", ""


def one_container() -> dict[str, object]:
    return {"containers": [{"name": "c", "image": "model:1"}]}


def test_an_object_that_cannot_be_changed_is_to_be_deleted(space: Space) -> None:
    space.create("pool", pool("llm"))
    taken_up(space, "llm")
    space.merge("config", "llm-epp-priorities", {"immutable": True})
    space.create("objective", objective("gold", "llm", 5))
    eventually(lambda: "delete it" in space.condition("llm", "ResolvedRefs")[2])
    space.delete("config", "llm-epp-priorities")
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")
