"""The status of a pod, as a kubelet would report it. Pure: what happened and the time are arguments."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from local_cluster.node.backoff import may_restart
from local_cluster.node.objects import Json, timestamp


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running, and why."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Running since."""

    since: datetime.datetime


@dataclass(frozen=True, slots=True)
class Terminated:
    """Ended: `exit_code` is 128 + the signal when killed."""

    exit_code: int
    started: datetime.datetime
    finished: datetime.datetime
    reason: str = ""
    message: str = ""


State: TypeAlias = Waiting | Running | Terminated


@dataclass(slots=True)
class Container:
    """The state of one container: now, and before its last restart."""

    name: str
    image: str
    state: State = field(default_factory=lambda: Waiting("ContainerCreating"))
    last: Terminated | None = None
    restarts: int = 0
    ready: bool = False
    started: bool = False


def end_reason(exit_code: int) -> str:
    """Return a Terminated state's reason for this exit code."""
    return "Completed" if exit_code == 0 else "Error"


def phase(containers: Sequence[Container], policy: str) -> str:
    """Return the pod's phase from its containers and its restartPolicy."""
    ended = [each.state for each in containers if isinstance(each.state, Terminated)]
    if len(ended) == len(containers) and not any(may_restart(policy, each.exit_code) for each in ended):
        return "Failed" if any(each.exit_code for each in ended) else "Succeeded"
    if any(isinstance(each.state, Waiting) and each.last is None for each in containers):
        return "Pending"
    return "Running"


def pod_status(
    pod: Json, containers: Sequence[Container], address: str, host_address: str, now: datetime.datetime
) -> Json:
    """Return the whole status; a condition keeps its transition time while its status stays."""
    before = pod.get("status") or {}
    current = phase(containers, pod["spec"].get("restartPolicy", "Always"))
    status: Json = {
        "phase": current,
        "hostIP": host_address,
        "hostIPs": [{"ip": host_address}],
        "startTime": before.get("startTime") or timestamp(now),
        "qosClass": before.get("qosClass") or "BestEffort",
        "conditions": _conditions(before.get("conditions") or [], containers, current, address, now),
        "containerStatuses": [_container_status(each, pod) for each in containers],
    }
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return status


def _conditions(
    before: list[Json], containers: Sequence[Container], current: str, address: str, now: datetime.datetime
) -> list[Json]:
    unready = sorted(each.name for each in containers if not each.ready)
    if current in {"Succeeded", "Failed"}:
        ready = {"status": "False", "reason": "PodCompleted" if current == "Succeeded" else "PodFailed"}
    elif unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        ready = {"status": "False", "reason": "ContainersNotReady", "message": message}
    else:
        ready = {"status": "True"}
    sandbox = "True" if address else "False"
    fresh: list[Json] = [
        {"type": "PodReadyToStartContainers", "status": sandbox},
        {"type": "Initialized", "status": "True"},
        {"type": "Ready", **ready},
        {"type": "ContainersReady", **ready},
        {"type": "PodScheduled", "status": "True"},
    ]
    known = {each["type"]: each for each in before}
    for condition in fresh:
        old = known.pop(condition["type"], None)
        same = old is not None and old["status"] == condition["status"]
        condition["lastProbeTime"] = None
        condition["lastTransitionTime"] = old["lastTransitionTime"] if old and same else timestamp(now)
    return [*fresh, *known.values()]  # keep other writers' conditions, e.g. DisruptionTarget


def _container_status(container: Container, pod: Json) -> Json:
    identity = f"headroom://{pod['metadata']['uid']}/{container.name}/{container.restarts}"
    status: Json = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": container.ready,
        "started": container.started,
        "restartCount": container.restarts,
        "state": _state(container.state, identity),
        "lastState": _state(container.last, identity) if container.last else {},
    }
    if not isinstance(container.state, Waiting):
        status["containerID"] = identity
    return status


def _state(state: State, identity: str) -> Json:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        case Running(since):
            return {"running": {"startedAt": timestamp(since)}}
        case Terminated():
            return {
                "terminated": {
                    "exitCode": state.exit_code,
                    "reason": state.reason or end_reason(state.exit_code),
                    "message": state.message,
                    "startedAt": timestamp(state.started),
                    "finishedAt": timestamp(state.finished),
                    "containerID": identity,
                }
            }
