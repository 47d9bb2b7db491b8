"""A pod's status out of what happened to its containers."""

import datetime
from typing import Any

import pytest

from local_cluster.node.status import Container, Running, Terminated, Waiting, phase, pod_status

T0 = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
T1 = T0 + datetime.timedelta(seconds=5)


def ended(code: int) -> Terminated:
    return Terminated(code, T0, T1)


RUNNING = Container("a", "i", Running(T0), ready=True, started=True)
FRESH = Container("b", "i")
CRASHED = Container("c", "i", Waiting("CrashLoopBackOff"), last=ended(1))


@pytest.mark.parametrize(
    ("containers", "policy", "expected"),
    [
        ([FRESH], "Always", "Pending"),
        ([RUNNING, FRESH], "Always", "Pending"),
        ([RUNNING], "Always", "Running"),
        ([RUNNING, CRASHED], "Always", "Running"),
        ([Container("a", "i", ended(0)), RUNNING], "Never", "Running"),
        ([Container("a", "i", ended(0))], "Never", "Succeeded"),
        ([Container("a", "i", ended(0)), Container("b", "i", ended(3))], "Never", "Failed"),
        ([Container("a", "i", ended(0))], "OnFailure", "Succeeded"),
    ],
)
def test_phase(containers: list[Container], policy: str, expected: str) -> None:
    assert phase(containers, policy) == expected


def status(pod: dict[str, Any], *containers: Container, now: datetime.datetime = T1) -> dict[str, Any]:
    return pod_status(pod, containers, "127.64.0.1", "127.0.0.1", now)


POD: dict[str, Any] = {"metadata": {"uid": "u"}, "spec": {"containers": []}}


def conditions(found: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in found["conditions"]}


def test_a_pod_is_ready_when_all_containers_are() -> None:
    assert conditions(status(POD, RUNNING))["Ready"] == "True"
    found = status(POD, RUNNING, CRASHED)
    assert (conditions(found)["Ready"], conditions(found)["ContainersReady"]) == ("False", "False")
    assert "[c]" in next(each["message"] for each in found["conditions"] if each["type"] == "Ready")


def test_a_transition_time_stays_while_the_status_stays() -> None:
    before = status(POD, FRESH, now=T0)
    after = status({**POD, "status": before}, RUNNING, now=T1)
    times = {each["type"]: each["lastTransitionTime"] for each in after["conditions"]}
    assert times["Initialized"] == "2026-01-01T00:00:00Z"
    assert times["Ready"] == "2026-01-01T00:00:05Z"
    assert after["startTime"] == "2026-01-01T00:00:00Z"


def test_conditions_of_others_stay() -> None:
    other = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert other in status({**POD, "status": {"conditions": [other]}}, RUNNING)["conditions"]


def test_container_statuses_hold_the_state_and_the_one_before() -> None:
    crashed = Container("c", "i:1", Waiting("CrashLoopBackOff", "back-off 10s"), last=ended(137), restarts=2)
    (found,) = status(POD, crashed)["containerStatuses"]
    assert found["restartCount"] == 2
    assert found["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert found["lastState"]["terminated"]["exitCode"] == 137
    assert found["lastState"]["terminated"]["reason"] == "Error"


def test_the_same_facts_make_the_same_status() -> None:
    first = status(POD, RUNNING, now=T0)
    assert status({**POD, "status": first}, RUNNING, now=T1) == first
