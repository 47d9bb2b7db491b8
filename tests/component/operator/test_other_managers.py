"""Objects that other managers wrote too: backups, interrupted creations, changed strategies."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from operator_cluster import Cluster, Object, OperatorProcess, Space, eventually, picker, pool

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
KINDS = {
    "service": "v1",
    "account": "v1",
    "config": "v1",
    "binding": "rbac.authorization.k8s.io/v1",
    "deployment": "apps/v1",
    "picker": "headroom.dev/v1alpha1",
}


@contextmanager
def updates_refused(cluster: Cluster, space: Space, resource: str) -> Iterator[None]:
    """Let objects of the core group's resource be created, and refuse every later write with a 500."""
    hook = {
        "name": "gone.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource]}
        ],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}},
    }
    space.create("service", {"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 1}]}})
    assert (
        cluster.api.create(WEBHOOKS, {"metadata": {"name": f"u-{space.name}"}, "webhooks": [hook]}).code
        == 201
    )
    probe = space.path("service", "probe") + "?dryRun=All"
    patch = {"metadata": {"labels": {"a": "b"}}}
    merge = "application/merge-patch+json"
    eventually(lambda: cluster.api.request("PATCH", probe, patch, merge).code == 500, "in force")
    try:
        yield
    finally:
        assert cluster.api.request("DELETE", f"{WEBHOOKS}/u-{space.name}").code == 200


def ports(space: Space) -> list[int]:
    live = space.get("service", "llm-epp") or {"spec": {"ports": ()}}
    return [port["port"] for port in live["spec"]["ports"]]


def our_operations(body: Object | None) -> list[str]:
    entries = (body or {"metadata": {}})["metadata"].get("managedFields", ())
    mine = [entry for entry in entries if entry["manager"] == "headroom-operator"]
    return sorted(entry["operation"] for entry in mine if not entry.get("subresource"))


def move_port(space: Space, number: int) -> None:
    ref = {"name": "llm-epp", "port": {"number": number}}
    space.merge("pool", "llm", {"spec": {"endpointPickerRef": ref}})


def test_an_interrupted_creation_can_be_changed_later(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    with updates_refused(cluster, space, "services"):
        space.create("pool", pool("llm"))
        eventually(lambda: space.condition("llm", "ResolvedRefs")[:2] == ("False", "ApplyFailed"))
        assert our_operations(space.get("service", "llm-epp")) == ["Update"]
    eventually(lambda: space.condition("llm", "ResolvedRefs")[0] == "True")
    eventually(lambda: our_operations(space.get("service", "llm-epp")) == ["Apply"])
    move_port(space, 9005)
    eventually(lambda: ports(space) == [9005, 9090], "the Service follows the pool")


def backup(space: Space) -> list[tuple[str, Object]]:
    """Return our objects as a backup tool keeps them: without owners, managers and identity."""
    kept = []
    for kind, version in KINDS.items():
        for body in space.all(kind):
            metadata = body["metadata"]
            if metadata.get("labels", {}).get("app.kubernetes.io/managed-by") != "headroom":
                continue
            copy = {
                "apiVersion": version,
                **{key: value for key, value in body.items() if key not in {"status", "metadata"}},
                "metadata": {key: metadata[key] for key in ("name", "labels", "annotations")},
            }
            if kind == "service":
                copy["spec"] = {
                    key: value for key, value in copy["spec"].items() if not key.startswith("clusterIP")
                }
            kept.append((kind, json.loads(json.dumps(copy).replace(space.name, "NAMESPACE"))))
    return kept


def test_a_restored_namespace_is_taken_up_as_it_is(
    cluster: Cluster, operator: OperatorProcess, space: Space
) -> None:
    space.create("pool", pool("llm"))
    eventually(lambda: "deployment/llm-epp" in space.children())
    copies = backup(space)
    assert len(copies) == 7

    restored = cluster.space()
    for kind, body in copies:
        body = json.loads(json.dumps(body).replace("NAMESPACE", restored.name))
        answer = cluster.api.create(restored.path(kind) + "?fieldManager=velero", body)
        assert answer.code == 201, answer.body
    uids = {kind: (restored.all(kind)[0]["metadata"]["uid"]) for kind in ("service", "deployment")}
    owner = restored.create("pool", pool("llm"))

    def adopted(kind: str) -> bool:
        found = restored.all(kind)[0]["metadata"]
        return [each["uid"] for each in found.get("ownerReferences", ())] == [owner["metadata"]["uid"]]

    for kind in ("service", "deployment", "picker"):
        eventually(lambda kind=kind: adopted(kind), f"{kind} adopted")  # type: ignore[misc]
    assert {kind: (restored.all(kind)[0]["metadata"]["uid"]) for kind in uids} == uids
    assert restored.condition("llm", "Accepted")[0] == "True"
    eventually(lambda: restored.condition("llm", "ResolvedRefs")[0] == "True")
    move_port(restored, 9005)
    eventually(lambda: ports(restored) == [9005, 9090], "the Service follows the pool")

    def args() -> Any:
        return (restored.get("deployment", "llm-epp") or {})["spec"]["template"]["spec"]["containers"][0][
            "args"
        ]

    eventually(lambda: "--grpc-port=9005" in args())
    eventually(lambda: restored.condition("llm", "ResolvedRefs")[0] == "True")


def test_what_excludes_our_fields_is_put_right(operator: OperatorProcess, space: Space) -> None:
    space.create("pool", pool("llm"))
    eventually(lambda: "deployment/llm-epp" in space.children())
    space.merge("deployment", "llm-epp", {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}})

    def strategy() -> Any:
        return (space.get("deployment", "llm-epp") or {})["spec"]["strategy"]

    wanted = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    eventually(lambda: strategy() == wanted, "the strategy put right")

    place = "/spec/template/spec/containers/0/readinessProbe"
    other = {"tcpSocket": {"port": 1}, "periodSeconds": 1}
    space.edit("deployment", "llm-epp", {"op": "replace", "path": place, "value": other})

    def probe() -> Any:
        live = space.get("deployment", "llm-epp") or {}
        return live["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]

    eventually(lambda: "grpc" in probe() and "tcpSocket" not in probe(), "the probe put right")
    eventually(lambda: our_operations(space.get("deployment", "llm-epp")) == ["Apply"])


def test_the_word_on_the_pool_is_ours_whoever_wrote_it(operator: OperatorProcess, space: Space) -> None:
    space.create("pool", pool("llm"))
    eventually(lambda: space.word("llm"))
    body = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "llm", "annotations": {"headroom.dev/picker": "Wrong"}},
    }
    space.apply("pool", body, "someone")
    eventually(lambda: space.word("llm") != "Wrong", "the right word")


def test_a_child_that_lost_its_annotation_is_removed_when_it_is_not_wanted(
    operator: OperatorProcess, space: Space
) -> None:
    space.create("picker", picker("llm", proxy={"mode": "Deployment"}))
    space.create("pool", pool("llm"))
    eventually(lambda: "deployment/llm-epp-proxy" in space.children())
    # While it is paused nothing is put right, as while the operator is away.
    space.merge("picker", "llm", {"spec": {"paused": True}})
    eventually(lambda: space.condition("llm", "Accepted")[1] == "Paused")
    nameless = {"metadata": {"annotations": {"headroom.dev/pool-name": None}}}
    space.merge("deployment", "llm-epp-proxy", nameless)
    space.merge("service", "llm-epp-proxy", nameless)
    space.merge("picker", "llm", {"spec": {"paused": False, "proxy": {"mode": "None"}}})
    gone = {"deployment/llm-epp-proxy", "service/llm-epp-proxy"}
    eventually(lambda: not gone & space.children(), "removed")
    assert "deployment/llm-epp" in space.children()
