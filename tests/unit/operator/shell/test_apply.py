"""The applier against a recording API: which calls it makes, and what it makes of refusals."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from inference_operator.core.cache import Cache
from inference_operator.core.desired.plan import desired
from inference_operator.core.kinds import CHILD_KINDS, DEPLOYMENT, PICKER, ROLE_BINDING, SERVICE, Kind
from inference_operator.core.naming import FIELD_MANAGER
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import judge
from inference_operator.shell.api import Api
from inference_operator.shell.apply import Applier, Outcome
from observations import observation, picker_body, pool_body
from recording_connection import RecordingConnection

Object = dict[str, Any]


class Bench:
    """An applier over a recording API, with the observation that follows from what it wrote."""

    def __init__(self, seen: Observation | None = None) -> None:
        self.connection = RecordingConnection()
        self.seen = observation() if seen is None else seen
        self.cache = Cache()
        self.applier = Applier(Api(self.connection), self.cache)

    def run(self, **changes: Any) -> Outcome:
        """Look at the objects as they are, and carry out what follows."""
        self.seen = replace(self.seen, **changes)
        live = {(kind, body["metadata"]["name"]): body for kind, body in self.live()}
        children = {key: body for key, body in live.items() if key[0] is not PICKER}
        self.seen = replace(
            self.seen,
            children=children,
            service=children.get((SERVICE, self.seen.picker_name)),
        ).with_picker(live.get((PICKER, self.seen.pool_name)))
        return asyncio.run(self.applier.carry_out(self.seen, desired(self.seen, judge(self.seen))))

    def live(self) -> list[tuple[Kind, Object]]:
        return [
            (kind, body)
            for kind in (PICKER, *CHILD_KINDS)
            for path, body in self.connection.objects.items()
            if path.startswith(kind.path("ns") + "/")
        ]

    def object(self, kind: Kind, name: str) -> Object:
        return self.connection.objects[kind.path("ns", name)]

    def operations(self, kind: Kind, name: str) -> list[str]:
        """Return the operations of our managedFields entries."""
        entries = self.object(kind, name)["metadata"]["managedFields"]
        return [entry["operation"] for entry in entries if entry["manager"] == FIELD_MANAGER]

    def new_writes(self) -> list[str]:
        found = list(self.connection.writes)
        self.connection.calls.clear()
        return found


def on_port(number: int) -> Observation:
    ref = {"group": "", "kind": "Service", "name": "llm-epp", "port": {"number": number}}
    return observation(pool_body(endpointPickerRef=ref))


def test_a_new_pool_gets_its_objects_in_order_and_then_there_is_silence() -> None:
    bench = Bench()
    outcome = bench.run()
    assert not outcome.failures
    assert bench.new_writes() == [
        "create services/llm-epp",
        "edit services/llm-epp",
        "apply services/llm-epp",
        "create endpointpickers/llm",
        "edit endpointpickers/llm",
        "apply endpointpickers/llm",
        "apply serviceaccounts/llm-epp",
        "apply rolebindings/llm-epp",
        "apply configmaps/llm-epp-config",
        "apply configmaps/llm-epp-priorities",
        "apply deployments/llm-epp",
    ]
    bench.run()
    assert bench.new_writes() == []


@pytest.mark.parametrize("interrupted", ["edit services/llm-epp", "apply services/llm-epp"])
def test_a_creation_that_was_interrupted_leaves_no_update_entry(interrupted: str) -> None:
    bench = Bench()
    with bench.connection.refusing(interrupted, 500):
        assert bench.run().failures
    bench.run()
    assert bench.operations(SERVICE, "llm-epp") == ["Apply"]
    bench.new_writes()
    bench.run()
    assert bench.new_writes() == []


def test_an_endpoint_picker_whose_creation_was_interrupted_is_struck_too() -> None:
    bench = Bench()
    with bench.connection.refusing("edit endpointpickers/llm", 500):
        bench.run()
    bench.run()
    assert bench.operations(PICKER, "llm") == ["Apply"]


def test_an_object_that_changed_meanwhile_is_looked_at_again_before_more_is_done() -> None:
    bench = Bench()
    with bench.connection.refusing("edit services/llm-epp", 409, "Conflict"):
        outcome = bench.run()
    assert (outcome.stale, outcome.failures) == (True, [])
    assert bench.new_writes() == ["create services/llm-epp", "edit services/llm-epp"]


def test_a_running_deployment_does_not_roll_while_its_service_is_refused() -> None:
    bench = Bench()
    bench.run()
    bench.new_writes()
    moved = on_port(9005)
    with bench.connection.refusing("apply services/llm-epp", 422, "Invalid"):
        outcome = bench.run(pool=moved.pool, pool_object=moved.pool_object)
    assert [failure.kind for failure in outcome.failures] == [SERVICE]
    assert "apply deployments/llm-epp" not in bench.new_writes()
    bench.run()
    assert "apply deployments/llm-epp" in bench.new_writes()


def test_a_missing_deployment_is_made_while_the_service_is_refused() -> None:
    bench = Bench()
    bench.run()
    del bench.connection.objects[DEPLOYMENT.path("ns", "llm-epp")]
    moved = on_port(9005)
    with bench.connection.refusing("apply services/llm-epp", 422, "Invalid"):
        bench.run(pool=moved.pool, pool_object=moved.pool_object)
    assert "apply deployments/llm-epp" in bench.new_writes()


def test_what_excludes_the_intent_is_taken_out_before_it_is_applied() -> None:
    bench = Bench()
    bench.run()
    bench.new_writes()
    container = bench.object(DEPLOYMENT, "llm-epp")["spec"]["template"]["spec"]["containers"][0]
    probe = container["readinessProbe"]
    wanted = probe.pop("grpc")
    probe["httpGet"] = {"path": "/", "port": 1}
    bench.run()
    assert bench.new_writes() == [
        "edit deployments/llm-epp",
        "edit deployments/llm-epp",
        "apply deployments/llm-epp",
    ]
    container = bench.object(DEPLOYMENT, "llm-epp")["spec"]["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["grpc"] == wanted
    assert "httpGet" not in container["readinessProbe"]
    assert bench.operations(DEPLOYMENT, "llm-epp") == ["Apply"]


def test_one_refusal_does_not_keep_the_rest_from_being_made() -> None:
    bench = Bench()
    with bench.connection.refusing("apply rolebindings", 403, "Forbidden"):
        outcome = bench.run()
    (failure,) = outcome.failures
    assert failure.finding.reason == "ApplyFailed"
    assert "refused" in failure.finding.message
    assert "apply deployments/llm-epp" in bench.new_writes()


def test_a_repair_is_told_and_a_new_wish_is_not() -> None:
    bench = Bench()
    assert not bench.run().healed
    bench.object(DEPLOYMENT, "llm-epp")["spec"]["replicas"] = 0
    (healed,) = bench.run().healed
    assert "spec.replicas" in healed.message
    moved = on_port(9005)
    assert not bench.run(pool=moved.pool, pool_object=moved.pool_object).healed


def test_a_user_who_is_faster_keeps_the_service() -> None:
    bench = Bench()
    mine = {"metadata": {"name": "llm-epp", "namespace": "ns", "resourceVersion": "7"}, "spec": {}}
    bench.connection.objects[SERVICE.path("ns", "llm-epp")] = mine
    intents = desired(bench.seen, judge(bench.seen))
    outcome = asyncio.run(bench.applier.carry_out(bench.seen, intents))
    assert outcome.stale
    assert bench.new_writes() == ["create services/llm-epp"]


def test_an_object_of_that_name_that_is_not_ours_is_not_forced() -> None:
    bench = Bench()
    path = "/api/v1/namespaces/ns/configmaps/llm-epp-config"
    mine = {"metadata": {"name": "llm-epp-config", "namespace": "ns", "resourceVersion": "7"}}
    bench.connection.objects[path] = mine
    intents = desired(bench.seen, judge(bench.seen))
    outcome = asyncio.run(bench.applier.carry_out(bench.seen, intents))
    assert [failure.finding.reason for failure in outcome.failures] == ["NameTaken"]
    assert bench.connection.objects[path] == mine


def test_only_the_object_that_was_seen_is_removed() -> None:
    bench = Bench()
    bench.run()
    bench.new_writes()
    doomed = {(DEPLOYMENT, "llm-epp"): bench.object(DEPLOYMENT, "llm-epp")}
    assert asyncio.run(bench.applier.remove(bench.seen, doomed)) == []
    (call,) = [call for call in bench.connection.calls if call.method == "DELETE"]
    assert call.body["preconditions"]["uid"] == doomed[DEPLOYMENT, "llm-epp"]["metadata"]["uid"]


def test_a_users_endpoint_picker_over_an_interrupted_creation_is_handed_over() -> None:
    bench = Bench()
    with bench.connection.refusing("edit endpointpickers/llm", 500):
        bench.run()
    path = PICKER.path("ns", "llm")
    live = bench.connection.objects[path]
    users = {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:image": {}}}}
    live["metadata"]["managedFields"].append(users)
    live["spec"] = picker_body(image="mine:1")["spec"]
    bench.new_writes()
    bench.run()
    writes = [call for call in bench.connection.calls if "endpointpickers" in call.path]
    assert [call.verb for call in writes] == ["edit", "apply"]
    assert set(writes[1].body["metadata"]) == {"name", "namespace"}


def test_a_role_binding_to_another_role_is_made_anew_in_one_pass() -> None:
    bench = Bench()
    bench.run()
    bench.new_writes()
    settings = replace(bench.seen.settings, picker_cluster_role="another")
    assert not bench.run(settings=settings).failures
    assert bench.new_writes() == ["delete rolebindings/llm-epp", "apply rolebindings/llm-epp"]
    assert bench.object(ROLE_BINDING, "llm-epp")["roleRef"]["name"] == "another"
    bench.run()
    assert bench.new_writes() == []


def test_a_role_binding_that_a_pool_of_before_left_behind_is_made_anew() -> None:
    bench = Bench()
    bench.run()
    left = bench.object(ROLE_BINDING, "llm-epp")
    left["roleRef"] = {**left["roleRef"], "name": "another"}
    left["metadata"] |= {"annotations": {"headroom.dev/pool-name": "gone"}, "ownerReferences": []}
    bench.new_writes()
    live = {key: body for key, body in bench.seen.children.items() if key[0] is not ROLE_BINDING}
    seen = replace(bench.seen, children=live)
    intents = [each for each in desired(seen, judge(seen)) if each.kind is ROLE_BINDING]
    outcome = asyncio.run(bench.applier.carry_out(seen, intents))
    assert not outcome.failures
    assert bench.new_writes() == ["delete rolebindings/llm-epp", "apply rolebindings/llm-epp"]


def test_a_role_binding_stays_while_the_operator_may_not_bind_the_new_role() -> None:
    bench = Bench()
    bench.run()
    bench.new_writes()
    before = bench.object(ROLE_BINDING, "llm-epp")
    settings = replace(bench.seen.settings, picker_cluster_role="another")
    with bench.connection.refusing("create rolebindings", 403, "Forbidden"):
        outcome = bench.run(settings=settings)
    assert [failure.name for failure in outcome.failures] == ["llm-epp"]
    assert bench.object(ROLE_BINDING, "llm-epp") is before
    assert bench.new_writes() == []
