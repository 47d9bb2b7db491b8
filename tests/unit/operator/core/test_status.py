from dataclasses import replace
from typing import Any

import pytest

from inference_api.endpoint_picker import EndpointPicker
from inference_operator.core import reasons
from inference_operator.core.desired.plan import desired
from inference_operator.core.drift import drift
from inference_operator.core.endpoints import EndpointTally, tally
from inference_operator.core.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    OBJECTIVES,
    POD,
    POOL,
    SERVICE,
    Object,
)
from inference_operator.core.observation import Access, Denied, Failure, Observation
from inference_operator.core.ownership import judge
from inference_operator.core.parents import wanted_parents
from inference_operator.core.picker_answers import PickerAnswer
from inference_operator.core.rollout import why_again
from inference_operator.core.status import Report, report, unready_for
from observations import (
    FULL_ACCESS,
    NOW,
    ago,
    answered,
    objective,
    observation,
    picker_body,
    pool_body,
    settled,
)

READY_STATUS = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1}


def with_deployment(seen: Observation, status: Object, name: str = "llm-epp") -> Observation:
    body = {**seen.children[DEPLOYMENT, name], "status": status}
    return replace(seen, children={**seen.children, (DEPLOYMENT, name): body})


def told(seen: Observation, *failures: Failure) -> Report:
    return report(seen, judge(seen), failures)


def conditions(made: Report) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in made.status.conditions}


HEALTHY = answered(replace(with_deployment(settled(), READY_STATUS), endpoints=EndpointTally(2, 3)))


def test_all_is_well() -> None:
    made = told(HEALTHY)
    assert conditions(made) == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
        "PickerReady": ("True", "PickerReady"),
        "EndpointsReady": ("True", "EndpointsReady"),
        "EndpointsReachable": ("Unknown", "NotAsked"),
        "PickerReachable": ("Unknown", "NotAsked"),
        "ConfigAccepted": ("True", "ConfigAccepted"),
        "Ready": ("True", "Ready"),
    }
    assert made.summary.reason == "Ready"
    assert made.status.ready_replicas == 1
    assert (made.status.endpoints and made.status.endpoints.to_json()) == {"ready": 2, "total": 3}


def pod(reason: str = "", **status: Any) -> Object:
    state = {"state": {"waiting": {"reason": reason, "message": "words"}}} if reason else {}
    return {
        "metadata": {"name": "p0", "labels": {"app": "llm-epp"}},
        "status": {"containerStatuses": [{"name": "epp", **state}], **status},
    }


def killed(reason: str = "") -> Object:
    made = pod(reason)
    (container,) = made["status"]["containerStatuses"]
    container |= {"ready": False, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    return made


UNREADY = {"updatedReplicas": 1, "observedGeneration": 1}
REFUSED = {**UNREADY, "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}]}
UNPLACED = [{"type": "PodScheduled", "status": "False", "message": "no cpu"}]


@pytest.mark.parametrize(
    ("status", "pods", "reason", "words"),
    [
        pytest.param(UNREADY, (), "PodsNotReady", "0 of 1", id="not ready"),
        pytest.param({"observedGeneration": 0}, (), "Progressing", "rolled out", id="not seen yet"),
        pytest.param({"observedGeneration": 1}, (), "Progressing", "rolled out", id="not updated"),
        pytest.param(UNREADY, (pod("CrashLoopBackOff"),), "CrashLooping", "p0", id="crashing"),
        pytest.param(
            UNREADY, (killed(),), "OutOfMemory", "spec.resources.limits.memory", id="killed, up again"
        ),
        pytest.param(
            UNREADY, (killed("CrashLoopBackOff"),), "OutOfMemory", "(2Gi)", id="killed again and again"
        ),
        pytest.param(UNREADY, (pod("ImagePullBackOff"),), "ImageNotPulled", "words", id="no image"),
        pytest.param(UNREADY, (pod(conditions=UNPLACED),), "Unschedulable", "no cpu", id="no node"),
        pytest.param(REFUSED, (), "PodsRefused", "quota", id="refused"),
    ],
)
def test_why_a_picker_is_not_ready(status: Object, pods: tuple[Object, ...], reason: str, words: str) -> None:
    made = told(replace(with_deployment(HEALTHY, status), picker_pods=pods))
    assert conditions(made)["PickerReady"] == ("False", reason)
    assert conditions(made)["Ready"] == ("False", reason)
    assert words in made.summary.message


def test_pods_of_another_deployment_do_not_speak_for_the_picker() -> None:
    other = pod("CrashLoopBackOff")
    other["metadata"]["labels"]["app"] = "llm-epp-proxy"
    made = told(replace(with_deployment(HEALTHY, UNREADY), picker_pods=(other,)))
    assert conditions(made)["PickerReady"][1] == "PodsNotReady"


@pytest.mark.parametrize(
    ("seen", "condition", "expected"),
    [
        pytest.param(
            replace(HEALTHY, endpoints=EndpointTally()),
            "EndpointsReady",
            ("False", "NoEndpoints"),
            id="no endpoints",
        ),
        pytest.param(
            replace(HEALTHY, endpoints=EndpointTally(0, 2)),
            "EndpointsReady",
            ("False", "EndpointsNotReady"),
            id="none ready",
        ),
        pytest.param(
            replace(
                HEALTHY, access=replace(FULL_ACCESS, lacking=frozenset({Denied(kind=SERVICE, verb="watch")}))
            ),
            "ResolvedRefs",
            ("False", "AccessDenied"),
            id="right missing",
        ),
        pytest.param(
            replace(HEALTHY, access=Access(served=FULL_ACCESS.served - {FULL_ACCESS.objectives})),
            "Ready",
            ("True", "Ready"),
            id="objectives are optional",
        ),
        pytest.param(
            replace(HEALTHY, picker_answer=PickerAnswer()),
            "ConfigAccepted",
            ("Unknown", "NotAsked"),
            id="not asked",
        ),
        pytest.param(
            replace(HEALTHY, picker_answer=PickerAnswer()),
            "Ready",
            ("True", "Ready"),
            id="not asked, and serves",
        ),
        pytest.param(observation(absent_for=1.0), "Accepted", ("Unknown", "WaitingForTakeUp"), id="waiting"),
        pytest.param(observation(absent_for=1.0), "PickerReady", ("Unknown", "NotJudged"), id="not judged"),
        pytest.param(
            observation(picker=picker_body(paused=True)), "Accepted", ("True", "Paused"), id="paused"
        ),
    ],
)
def test_conditions(seen: Observation, condition: str, expected: tuple[str, str]) -> None:
    assert conditions(told(seen))[condition] == expected


def test_objectives_of_the_older_group_are_said_to_be_ignored() -> None:
    both = replace(FULL_ACCESS, ignored=OBJECTIVES[1])
    made = told(replace(HEALTHY, access=both, ignored_objectives=3))
    message = next(c.message for c in made.status.conditions if c.type == "ResolvedRefs")
    assert conditions(made)["ResolvedRefs"] == ("True", "ResolvedRefs")
    assert "3 InferenceObjectives of the group inference.networking.x-k8s.io" in message
    assert "in the group llm-d.ai" in message
    plain = told(replace(HEALTHY, access=both))
    assert plain.status.conditions[1].message == reasons.RESOLVED_REFS.sentence


PROXIED = settled(observation(picker=picker_body(proxy={"mode": "Deployment"})))
WITH_OBJECTIVES = replace(HEALTHY, objectives=(objective("gold", 1),))
OBJECTIVE = OBJECTIVES[0]
POOL_STATUS = Denied(kind=POOL, verb="update", subresource="status")
OBJECTIVE_STATUS = Denied(kind=OBJECTIVE, verb="patch", subresource="status")
PAUSED = observation(picker=picker_body(paused=True))


@pytest.mark.parametrize(
    ("seen", "right", "needed"),
    [
        pytest.param(HEALTHY, Denied(kind=SERVICE, verb="patch"), True, id="its objects are kept"),
        pytest.param(HEALTHY, Denied(kind=POD, verb="list"), True, id="its endpoints are counted"),
        pytest.param(HEALTHY, Denied(kind=SERVICE, verb="delete"), False, id="nothing is to be removed"),
        pytest.param(HEALTHY, Denied(kind=EVENT, verb="create"), False, id="events are a convenience"),
        pytest.param(HEALTHY, POOL_STATUS, False, id="without a proxy"),
        pytest.param(PROXIED, POOL_STATUS, True, id="with a proxy"),
        pytest.param(HEALTHY, OBJECTIVE_STATUS, False, id="without objectives"),
        pytest.param(WITH_OBJECTIVES, OBJECTIVE_STATUS, True, id="with objectives"),
        pytest.param(HEALTHY, Denied(kind=OBJECTIVE, verb="list"), True, id="objectives cannot be seen"),
        pytest.param(PAUSED, Denied(kind=SERVICE, verb="create"), False, id="paused"),
    ],
)
def test_a_missing_right_is_told_of_pools_that_need_it(
    seen: Observation, right: Denied, needed: bool
) -> None:
    made = told(replace(seen, access=replace(FULL_ACCESS, lacking=frozenset({right}))))
    message = next(c.message for c in made.status.conditions if c.type == "ResolvedRefs")
    assert (conditions(made)["ResolvedRefs"][1] == "AccessDenied") is needed
    assert (right.right in message) is needed


@pytest.mark.parametrize(
    ("right", "spelled"),
    [
        (Denied(kind=SERVICE, verb="get"), "get services"),
        (Denied(kind=DEPLOYMENT, verb="watch", namespace="a"), "watch deployments.apps"),
        (POOL_STATUS, "update inferencepools/status.inference.networking.k8s.io"),
    ],
)
def test_a_right_is_spelled_as_rbac_does(right: Denied, spelled: str) -> None:
    assert right.right == spelled


def test_a_failed_write_is_told() -> None:
    finding = reasons.APPLY_FAILED.say(kind="ConfigMap", name="x", message="too big")
    made = told(HEALTHY, Failure(kind=CONFIG_MAP, name="x", finding=finding))
    assert conditions(made)["ResolvedRefs"] == ("False", "ApplyFailed")
    assert "too big" in made.summary.message


def test_a_refusal_of_any_length_fits_into_a_condition() -> None:
    finding = reasons.APPLY_FAILED.say(kind="ConfigMap", name="x", message="9" * 100_000)
    made = told(HEALTHY, Failure(kind=CONFIG_MAP, name="x", finding=finding))
    assert conditions(made)["ResolvedRefs"] == ("False", "ApplyFailed")
    assert all(len(each.message) <= 32_768 for each in made.status.conditions)
    assert max(len(each.message) for each in made.status.conditions) > 1000


def test_a_proxy_has_a_condition_while_there_is_one() -> None:
    seen = settled(observation(picker=picker_body(proxy={"mode": "Deployment"})))
    seen = replace(with_deployment(seen, READY_STATUS), endpoints=EndpointTally(1, 1))
    made = told(with_deployment(seen, UNREADY, "llm-epp-proxy"))
    assert conditions(made)["ProxyReady"] == ("False", "PodsNotReady")
    assert conditions(made)["Ready"] == ("False", "PodsNotReady")
    assert made.status.proxy_address == "llm-epp-proxy.ns.svc:8081"
    assert "ProxyReady" not in conditions(told(HEALTHY))


def test_a_pass_over_what_was_told_already_is_no_drift_and_no_transition() -> None:
    first = told(HEALTHY)
    held = {**(HEALTHY.picker_object or {}), "status": first.status.to_json()}
    again = told(replace(HEALTHY, now=ago(-3600)).with_picker(held))
    assert again.status == first.status
    assert again.transitions == ()


def test_transition_times_move_with_the_status_only() -> None:
    first = told(replace(HEALTHY, now=ago(3600)))
    held = {**(HEALTHY.picker_object or {}), "status": first.status.to_json()}
    seen = replace(with_deployment(HEALTHY, UNREADY), now=NOW).with_picker(held)
    made = told(seen)
    times = {c.type: c.last_transition_time for c in made.status.conditions}
    assert times["Accepted"] == ago(3600)
    assert times["PickerReady"] == NOW
    assert [(t.type, t.finding.reason, t.good) for t in made.transitions] == [
        ("PickerReady", "PodsNotReady", False)
    ]


def test_starting_up_makes_no_event() -> None:
    made = told(with_deployment(HEALTHY, UNREADY))
    assert "PickerReady" not in {t.type for t in made.transitions}


def test_endpoints_are_pods_times_active_ports() -> None:
    ready = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    only = {"annotations": {"inference.networking.k8s.io/active-ports": "8000, x, 9, 8000"}}
    none = {"annotations": {"llm-d.ai/active-ports": ""}}
    pods: list[Object] = [
        {"metadata": {}, "status": ready},
        {"metadata": only, "status": ready},
        {"metadata": none, "status": ready},
        {"metadata": {"deletionTimestamp": "2026-05-01T12:00:00Z"}, "status": ready},
        {"metadata": {}, "status": {**ready, "podIP": ""}},
        {"metadata": {}, "status": {"phase": "Failed"}},
    ]
    assert tally(pods, [8000, 8001]) == EndpointTally(ready=3, total=7)


GATEWAY = {"controllerName": "example.com/gw", "parentRef": {"name": "gw"}}


def with_parents(seen: Observation, *entries: Object) -> Observation:
    return replace(seen, pool_object={**pool_body(), "status": {"parents": list(entries)}})


def test_our_parents_entry_comes_goes_and_leaves_others_alone() -> None:
    proxied = observation(picker=picker_body(proxy={"mode": "Deployment"}))
    made = wanted_parents(with_parents(proxied, GATEWAY), judge(proxied))
    assert made is not None
    assert made[0] == GATEWAY
    assert made[1]["parentRef"] == {
        "group": "",
        "kind": "Service",
        "name": "llm-epp-proxy",
        "namespace": "ns",
    }
    assert [(c["type"], c["status"]) for c in made[1]["conditions"]] == [
        ("Accepted", "True"),
        ("ResolvedRefs", "True"),
    ]
    later = replace(with_parents(proxied, *made), now=ago(-60))
    assert wanted_parents(later, judge(later)) is None
    plain = with_parents(observation(), made[1], GATEWAY)
    assert wanted_parents(plain, judge(plain)) == [GATEWAY]
    assert wanted_parents(with_parents(observation(), GATEWAY), judge(observation())) is None


def test_our_parents_entry_is_replaced_where_it_stands() -> None:
    proxied = observation(picker=picker_body(proxy={"mode": "Deployment"}))
    old = {"controllerName": "headroom.dev/standalone-proxy", "parentRef": {"name": "old"}}
    other = {**GATEWAY, "controllerName": "example.com/other"}
    made = wanted_parents(with_parents(proxied, GATEWAY, old, other), judge(proxied))
    assert made is not None
    assert [entry["parentRef"]["name"] for entry in made] == ["gw", "llm-epp-proxy", "gw"]


def test_a_full_list_of_parents_is_left_alone() -> None:
    proxied = observation(picker=picker_body(proxy={"mode": "Deployment"}))
    full = with_parents(proxied, *([GATEWAY] * 32))
    assert wanted_parents(full, judge(full)) is None


def test_what_is_desired_does_not_drift_from_itself() -> None:
    seen = settled()
    for intent in desired(seen, judge(seen)):
        live = seen.picker_object if intent.name == "llm" else seen.children[intent.kind, intent.name]
        assert live is not None
        assert drift(intent.body, live, "headroom-operator") is None


def test_the_status_is_what_the_api_type_reads() -> None:
    body = {**picker_body(), "status": told(HEALTHY).status.to_json()}
    assert EndpointPicker.model_validate(body).status == told(HEALTHY).status


def test_every_reason_is_a_word_and_a_sentence() -> None:
    known = [value for value in vars(reasons).values() if isinstance(value, reasons.Reason)]
    assert len(known) > 30
    for reason in known:
        assert reason.word.isalpha()
        assert reason.word[0].isupper()
        assert reason.sentence.count(" ") >= 2


def test_why_a_picker_is_not_ready_is_asked_less_and_less_often() -> None:
    assert unready_for(settled()) == 0.0
    status = {
        "conditions": [
            {
                "type": kind,
                "status": "False",
                "reason": "CrashLooping",
                "message": "",
                "lastTransitionTime": ago(seconds).isoformat(),
            }
            for kind, seconds in (("PickerReady", 40.0), ("ProxyReady", 900.0), ("Ready", 2.0))
        ]
    }
    assert unready_for(observation(picker=picker_body(status=status))) == 40.0
    assert [why_again(age) for age in (0.0, 12.0, 40.0, 3600.0)] == [3.0, 3.0, 10.0, 30.0]
