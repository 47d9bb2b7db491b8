"""Pools and EndpointPickers that the CRD admits and our types refuse: a condition, and nothing else moves."""

from dataclasses import replace
from typing import Any

import pytest

from inference_operator.core.desired.plan import desired, superfluous
from inference_operator.core.drift import drift
from inference_operator.core.kinds import DEPLOYMENT, PICKER
from inference_operator.core.naming import FIELD_MANAGER
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import Stance, judge
from inference_operator.core.parents import wanted_parents
from inference_operator.core.status import report
from observations import NOW, ago, answered, observation, picker_body, pool_body, settled


def bad_pool(**metadata: Any) -> Observation:
    """Return a running pool whose selector has become something that the type does not know."""
    body = pool_body(selector={"matchExpressions": []}, metadata=metadata)
    return settled().with_pool(body)


def bad_picker() -> Observation:
    return settled(observation(picker=picker_body())).with_picker(picker_body(proxy={"replicas": "many"}))


def accepted(seen: Observation) -> tuple[str, str, str]:
    found = next(c for c in report(seen, judge(seen)).status.conditions if c.type == "Accepted")
    return found.status, found.reason, found.message


def test_a_pool_that_is_not_understood_is_told_by_field() -> None:
    status, reason, message = accepted(bad_pool())
    assert (status, reason) == ("False", "InvalidPool")
    assert "spec.selector.matchLabels: Field required" in message
    assert "correct it" in message


def test_a_picker_that_is_not_understood_is_told_by_field_and_without_the_value() -> None:
    status, reason, message = accepted(bad_picker())
    assert (status, reason) == ("False", "InvalidEndpointPicker")
    assert "spec.proxy.replicas" in message
    assert "many" not in message


@pytest.mark.parametrize("seen", [bad_pool(), bad_picker()], ids=["pool", "picker"])
def test_what_runs_is_left_as_it_is(seen: Observation) -> None:
    verdict = judge(seen)
    intents = desired(seen, verdict)
    assert verdict.stance is Stance.HELD
    assert superfluous(seen, verdict, intents) == {}
    assert {intent.kind for intent in intents} <= {PICKER}
    assert seen.child(DEPLOYMENT, "llm-epp")


def test_a_pool_that_was_never_understood_gets_an_endpoint_picker_to_say_so() -> None:
    seen = observation().with_pool(pool_body(selector={}))
    (intent,) = desired(seen, judge(seen))
    assert intent.kind is PICKER
    assert intent.body["metadata"]["ownerReferences"][0]["uid"] == "uid-llm"
    young = replace(seen, known_for=1.0)
    assert judge(young).stance is Stance.WAITING


def test_the_annotation_that_holds_us_off_is_read_all_the_same() -> None:
    seen = bad_pool(annotations={"headroom.dev/managed": "false"})
    assert judge(seen).finding.reason == "NotManaged"


@pytest.mark.parametrize("seen", [bad_pool(), bad_picker()], ids=["pool", "picker"])
def test_it_is_told_once_and_then_there_is_silence(seen: Observation) -> None:
    first = report(replace(seen, now=ago(60)), judge(seen))
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "subresource": "status", "fieldsV1": {}}
    live: dict[str, Any] = {**(seen.picker_object or {}), "status": first.status.to_json()}
    live["metadata"] = {**live["metadata"], "managedFields": [entry]}
    again = seen.with_picker(live)
    made = report(replace(again, now=NOW), judge(again))
    assert not made.transitions
    assert drift({"status": made.status.to_json()}, live, FIELD_MANAGER, "status") is None


def test_a_status_that_a_gateway_got_wrong_is_no_fault_of_the_pool() -> None:
    body = {**pool_body(), "status": {"parents": [{"conditions": "none"}]}}
    seen = observation(picker=picker_body(proxy={"mode": "Deployment"})).with_pool(body)
    assert judge(seen).stance is Stance.MANAGED
    assert seen.pool is not None


def test_our_parents_entry_of_another_version_is_written_anew() -> None:
    entry = {
        "controllerName": "headroom.dev/standalone-proxy",
        "parentRef": {"name": "x"},
        "conditions": [{"type": "Accepted", "status": "Perhaps"}],
    }
    body = {**pool_body(), "status": {"parents": [entry]}}
    seen = observation(picker=picker_body(proxy={"mode": "Deployment"})).with_pool(body)
    made = wanted_parents(seen, judge(seen))
    assert made is not None
    assert made[0]["conditions"][0]["status"] == "True"


def test_a_proxy_that_runs_keeps_its_entry_while_the_picker_is_not_understood() -> None:
    proxied = answered(settled(observation(picker=picker_body(proxy={"mode": "Deployment"}))))
    entries = wanted_parents(proxied, judge(proxied))
    seen = proxied.with_pool({**pool_body(), "status": {"parents": entries}})
    seen = seen.with_picker(picker_body(proxy={"replicas": "many"}))
    assert wanted_parents(seen, judge(seen)) is None
